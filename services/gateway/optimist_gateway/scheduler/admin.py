"""Commands to the scheduler that concern all gateways, each on a stream of its own."""

import asyncio

import grpc

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.channel import open_channel
from optimist_common.tls import Tls
from optimist_gateway.scheduler.request_stream import SchedulerUnavailableError

PAUSE_MODES = {
    "keep": scheduler_pb2.PAUSE_MODE_KEEP,
    "wait": scheduler_pb2.PAUSE_MODE_WAIT,
    "abort": scheduler_pb2.PAUSE_MODE_ABORT,
}


class CommandRefusedError(Exception):
    """The scheduler did not carry a command out; the text is its reason."""


class SchedulerAdmin:
    """Pauses and resumes the scheduler, and asks for its figures."""

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        """Takes where the scheduler is, host:port; nothing is opened before it is needed."""
        self._address, self._tls = address, tls

    async def ask(
        self, command: scheduler_pb2.ConnectRequest, seconds: float
    ) -> scheduler_pb2.Reply:
        """Sends one command and returns its reply.

        A pause whose caller goes away before it is answered is taken back.

        Raises:
            CommandRefusedError: The scheduler did not carry it out.
            SchedulerUnavailableError: The scheduler is not reached.
            TimeoutError: There was no reply within so many seconds.
        """
        command.command_id = 1
        try:
            async with asyncio.timeout(seconds), open_channel(self._address, self._tls) as channel:
                reply = await self._exchange(channel, command)
        except grpc.aio.AioRpcError as error:
            raise SchedulerUnavailableError(
                f"the scheduler at {self._address} is not reached ({error.code().name})"
            ) from None
        if reply.error:
            raise CommandRefusedError(reply.error)
        return reply

    async def _exchange(
        self, channel: grpc.aio.Channel, command: scheduler_pb2.ConnectRequest
    ) -> scheduler_pb2.Reply:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Connect()
        try:
            await call.write(command)
            async for response in call:
                for reply in response.replies:
                    return reply
        finally:
            call.cancel()
        raise SchedulerUnavailableError("the scheduler ended the stream without a reply")
