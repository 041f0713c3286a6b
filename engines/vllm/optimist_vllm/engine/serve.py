"""The engine put together from its settings."""

import asyncio
import gc
import logging
import multiprocessing
import os
from collections.abc import Sequence
from threading import Thread

from optimist.scheduler.v1 import scheduler_pb2_grpc
from optimist_common.network.server import GrpcServer, until_signal, watch_for_hangs
from optimist_common.observing.metrics import DraftMetrics, serve_metrics
from optimist_common.scheduler_service.servicer import SchedulerServicer
from optimist_vllm.engine.engine import Engine
from optimist_vllm.engine.llm import VllmLlm
from optimist_vllm.engine.settings import EngineSettings

logger = logging.getLogger(__name__)


async def serve(settings: EngineSettings, flags: Sequence[str]) -> None:
    """Serves until a signal.

    Raises:
        SetupError: It cannot start.
        RuntimeError: vLLM has ended.
    """
    serve_metrics("engine", settings.host, settings.metrics_port)
    server = GrpcServer(settings.host, settings.port, settings.tls())
    signal = asyncio.create_task(until_signal())
    starting = asyncio.create_task(_start(settings, flags))
    await asyncio.wait({starting, signal}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        _end_at_once()
    llm = starting.result()
    try:
        drafts = DraftMetrics("optimist_scheduler") if settings.metrics_port else None
        engine = Engine(llm, settings.max_num_waiting, drafts)
        # What vLLM has imported is never garbage; looking through it takes half a second.
        gc.collect()
        gc.freeze()
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(
            SchedulerServicer(engine), server.server
        )
        port = await server.start()
        logger.info("listening on %s:%d", settings.host, port)
        await server.set_serving(serving=True)
        tasks = [
            asyncio.create_task(work)
            for work in (
                llm.serve(engine),
                engine.run(),
                watch_for_hangs(server, engine.seconds_at_work, settings.hang_seconds, is_own=True),
            )
        ]
        # They end only with an error, which ends the process.
        ended, _ = await asyncio.wait({*tasks, signal}, return_when=asyncio.FIRST_COMPLETED)
        for task in ended - {signal}:
            task.result()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        signal.cancel()
        await server.stop()
        llm.close()


async def _start(settings: EngineSettings, flags: Sequence[str]) -> VllmLlm:
    """Starts vLLM on a thread, so that signals are heard meanwhile."""
    loop = asyncio.get_running_loop()
    started: asyncio.Future[VllmLlm] = loop.create_future()

    def start() -> None:
        try:
            llm = VllmLlm(settings, flags)
        except BaseException as error:
            loop.call_soon_threadsafe(started.set_exception, error)
        else:
            loop.call_soon_threadsafe(started.set_result, llm)

    Thread(target=start, name="start-vllm", daemon=True).start()
    return await started


def _end_at_once() -> None:
    """Ends the process while vLLM starts, which cannot be interrupted, and those it has started."""
    for process in multiprocessing.active_children():
        process.terminate()
    os._exit(0)
