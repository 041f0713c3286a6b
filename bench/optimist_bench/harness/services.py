"""Services that a benchmark starts: all or some, with further flags; their figures and streams."""

import asyncio
import threading
import urllib.request
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_cli.serve.command import write_prefixed
from optimist_cli.serve.process import ServiceSpec
from optimist_cli.serve.service_specs import service_specs
from optimist_cli.serve.settings import ServeSettings
from optimist_cli.serve.supervisor import Supervisor
from optimist_common.network.channel import open_channel


@contextmanager
def running(specs: Sequence[ServiceSpec]) -> Iterator[None]:
    """Starts services and returns when all are healthy; ends them afterwards.

    Schedulers have no prefix cache: rounds with the same prompts are to cost the same.

    Raises:
        SetupError: A service could not start.
    """
    flags = ("--no-enable-prefix-caching",)
    supervisor = Supervisor(
        [
            replace(spec, arguments=[*spec.arguments, *flags]) if spec.name == "scheduler" else spec
            for spec in specs
        ],
        write_prefixed,
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(supervisor.start(), loop).result()
        yield
    finally:
        asyncio.run_coroutine_threadsafe(supervisor.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def stack_specs(
    settings: ServeSettings,
    flags: Mapping[str, Sequence[str]],
    without: Collection[str] = (),
) -> list[ServiceSpec]:
    """Returns how to start the services.

    Args:
        settings: Of `optimist serve`.
        flags: More flags by service; they prevail.
        without: Services to leave out; whoever would call them must know that by `flags`.
    """
    return [
        replace(spec, arguments=[*spec.arguments, *flags.get(spec.name, ())])
        for spec in service_specs(settings)
        if spec.name not in without
    ]


def address_of(specs: Sequence[ServiceSpec], name: str) -> str:
    """Returns host:port of a service; raises LookupError if it is not there."""
    for spec in specs:
        if spec.name == name:
            host, port = (
                spec.arguments[spec.arguments.index(flag) + 1] for flag in ("--host", "--port")
            )
            return f"{host}:{port}"
    raise LookupError(f"there is no {name}")


def read_metrics(port: int) -> dict[str, float]:
    """Returns the metrics of a service on this machine, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as response:
        lines = response.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples}


class SchedulerStream:
    """One gateway's stream to a scheduler, without the gateway.

    Sends commands and reads responses; a command that the scheduler refuses is an error.
    """

    def __init__(self, call: Any) -> None:
        self._call = call

    async def add(self, request: scheduler_pb2.Add) -> None:
        """Adds a request; its handle, above 0, is the number of the command too."""
        await self._call.write(scheduler_pb2.ConnectRequest(add=request, command_id=request.handle))

    async def abort(self, handle: int) -> None:
        """Aborts a request, whose end is reported then."""
        abort = scheduler_pb2.Abort(handle=handle, wants_finished=True)
        await self._call.write(scheduler_pb2.ConnectRequest(abort=abort, command_id=handle))

    async def read(self) -> scheduler_pb2.ConnectResponse:
        """Reads one response.

        Raises:
            RuntimeError: The scheduler refuses a command, or has ended the stream.
        """
        response = await self._call.read()
        if not isinstance(response, scheduler_pb2.ConnectResponse):
            raise RuntimeError(f"the scheduler ended the stream: {await self._call.details()}")
        for reply in response.replies:
            if reply.error:
                raise RuntimeError(f"the scheduler refused a command: {reply.error}")
        return response

    async def ask_stats(self) -> None:
        """Asks for the scheduler's figures, which are a reply of one of the next responses."""
        await self._call.write(
            scheduler_pb2.ConnectRequest(get_stats=scheduler_pb2.GetStats(), command_id=0)
        )

    async def read_stats(self) -> scheduler_pb2.Stats:
        """Returns the scheduler's figures, once no request runs any more."""
        await self.ask_stats()
        while True:
            for reply in (await self.read()).replies:
                if reply.stats.num_plans:
                    return reply.stats


@asynccontextmanager
async def open_stream(scheduler: str) -> AsyncIterator[SchedulerStream]:
    """Connects to a scheduler at host:port; ends the stream afterwards."""
    async with open_channel(scheduler) as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        call = stub.Connect()
        try:
            yield SchedulerStream(call)
        finally:
            call.cancel()
