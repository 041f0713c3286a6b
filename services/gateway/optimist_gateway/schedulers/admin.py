"""Commands to the schedulers that concern all gateways, each on a stream of its own."""

import asyncio
from collections.abc import Sequence

import grpc

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.network.channel import Tls, open_channel
from optimist_common.network.endpoints import Peer
from optimist_gateway.schedulers.requests import SchedulerUnavailableError

Replies = tuple[dict[str, scheduler_pb2.Reply], dict[str, Exception]]
"""Of schedulers by their addresses, and why others did not carry a command out."""


class CommandRefusedError(Exception):
    """The scheduler did not carry a command out; the text is its reason."""


async def ask_all(
    peers: Sequence[Peer], tls: Tls | None, command: scheduler_pb2.ConnectRequest, seconds: float
) -> Replies:
    """Sends one command to schedulers and returns what they reply.

    A pause whose caller goes away before it is answered is taken back. Why there is no reply is a
    `CommandRefusedError`, a `SchedulerUnavailableError`, or a `TimeoutError` if there was none
    within so many seconds. Without any scheduler, it is said for an empty address.
    """
    command.command_id = 1
    if not peers:
        return {}, {"": SchedulerUnavailableError("no address of a scheduler is known yet")}
    answers = await asyncio.gather(*(_ask(peer, tls, command, seconds) for peer in peers))
    replies: Replies = {}, {}
    for peer, answer in zip(peers, answers, strict=True):
        if isinstance(answer, Exception):
            replies[1][peer.target] = answer
        else:
            replies[0][peer.target] = answer
    return replies


async def _ask(
    peer: Peer, tls: Tls | None, command: scheduler_pb2.ConnectRequest, seconds: float
) -> scheduler_pb2.Reply | Exception:
    where = f"the scheduler at {peer.target}"
    try:
        async with (
            asyncio.timeout(seconds),
            open_channel(peer.target, tls, server_name=peer.server_name) as channel,
        ):
            reply = await _exchange(channel, command)
    except grpc.aio.AioRpcError as error:
        return SchedulerUnavailableError(f"{where} is not reached ({error.code().name})")
    except SchedulerUnavailableError as error:
        return error
    except TimeoutError:
        return TimeoutError(f"{where} did not answer within {seconds:g} seconds")
    return CommandRefusedError(reply.error) if reply.error else reply


async def _exchange(
    channel: grpc.aio.Channel, command: scheduler_pb2.ConnectRequest
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
