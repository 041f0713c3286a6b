"""The scheduler put together from its settings."""

import asyncio
import logging

from optimist.scheduler.v1 import scheduler_pb2_grpc
from optimist_common.network.server import GrpcServer, until_signal, watch_for_hangs
from optimist_common.observing.metrics import serve_metrics
from optimist_common.process import collecting_seldom
from optimist_common.scheduler_service.servicer import SchedulerServicer
from optimist_scheduler.engine.fleet import Fleet
from optimist_scheduler.settings import SchedulerSettings

logger = logging.getLogger(__name__)


async def serve(settings: SchedulerSettings) -> None:
    """Serves until a signal; raises SetupError if it cannot start."""
    serve_metrics("scheduler", settings.host, settings.metrics_port)
    server = GrpcServer(settings.host, settings.port, settings.tls())
    tracer = settings.tracer()
    fleet = Fleet(settings, tracer)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(
        SchedulerServicer(fleet), server.server
    )
    port = await server.start()
    logger.info("listening on %s:%d", settings.host, port)
    running = asyncio.create_task(_run(fleet, server, settings.hang_seconds))
    signal = asyncio.create_task(until_signal())
    try:
        # The fleet ends only with an error, which ends the process.
        with collecting_seldom():
            await asyncio.wait({running, signal}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        signal.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop()
        await asyncio.to_thread(tracer.close)


async def _run(fleet: Fleet, server: GrpcServer, hang_seconds: float) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fleet.run())
        await fleet.until_reached()
        await server.set_serving(serving=True)
        # Of workers, of which each is started again by itself.
        watching = watch_for_hangs(server, fleet.seconds_at_work, hang_seconds, is_own=False)
        tasks.create_task(watching)
