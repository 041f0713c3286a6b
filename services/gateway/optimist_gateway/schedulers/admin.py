"""Commands to the schedulers that concern all gateways, each on a stream of its own."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import grpc

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.network.channel import Tls, open_channel
from optimist_common.network.endpoints import Peer
from optimist_gateway.schedulers.requests import SchedulerUnavailableError


class CommandRefusedError(Exception):
    """The scheduler did not carry a command out; the text is its reason."""


class SchedulerAdmin:
    """Pauses and resumes the schedulers, asks for their figures, and changes priorities."""

    def __init__(self, peers: Callable[[], Sequence[Peer]], tls: Tls | None = None) -> None:
        """Takes what returns the schedulers; nothing is opened before it is needed."""
        self._peers, self._tls = peers, tls

    async def ask(
        self, command: scheduler_pb2.ConnectRequest, seconds: float
    ) -> Mapping[str, scheduler_pb2.Reply | Exception]:
        """Sends one command to all schedulers and returns their replies, by their addresses.

        A pause whose caller goes away before it is answered is taken back.

        Returns:
            For each scheduler its reply, or the reason why it did not carry the command out: a
            `CommandRefusedError`, a `SchedulerUnavailableError`, or a `TimeoutError` if there was
            no reply within so many seconds. While no scheduler is known, a single
            `SchedulerUnavailableError` for an empty address.
        """
        command.command_id = 1
        peers = self._peers()
        if not peers:
            return {"": SchedulerUnavailableError("no address of a scheduler is known yet")}
        answers = await asyncio.gather(*(self._ask(peer, command, seconds) for peer in peers))
        return {peer.target: answer for peer, answer in zip(peers, answers, strict=True)}

    async def _ask(
        self, peer: Peer, command: scheduler_pb2.ConnectRequest, seconds: float
    ) -> scheduler_pb2.Reply | Exception:
        try:
            async with (
                asyncio.timeout(seconds),
                open_channel(peer.target, self._tls, server_name=peer.server_name) as channel,
            ):
                reply = await self._exchange(channel, command)
        except grpc.aio.AioRpcError as error:
            return SchedulerUnavailableError(
                f"the scheduler at {peer.target} is not reached ({error.code().name})"
            )
        except SchedulerUnavailableError as error:
            return error
        except TimeoutError:
            return TimeoutError(
                f"the scheduler at {peer.target} did not answer within {seconds:g} seconds"
            )
        return CommandRefusedError(reply.error) if reply.error else reply

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
