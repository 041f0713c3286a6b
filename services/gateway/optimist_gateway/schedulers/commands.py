"""Commands that concern schedulers as such, not requests: each goes by a stream of its own."""

import asyncio
from collections.abc import Sequence
from itertools import zip_longest

import grpc

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.network.channel import Tls, open_channel
from optimist_common.network.endpoints import Peer
from optimist_gateway.core.error import ApiError
from optimist_gateway.schedulers.pool import SchedulerPool
from optimist_gateway.schedulers.requests import SchedulerUnavailableError

Replies = dict[str, scheduler_pb2.Reply | ApiError]
"""Of schedulers by their addresses, or why they did not carry a command out."""


async def ask_all(
    pools: Sequence[SchedulerPool], command: scheduler_pb2.ConnectRequest, seconds: float
) -> Replies:
    """Sends one command to all schedulers of pools and returns what they reply.

    A pause whose caller goes away before it is answered is taken back. Status 409 is a refusal, 503
    a scheduler that is not reached, and 504 one that did not reply within so many seconds. What a
    pool without any scheduler says is of an empty address.
    """
    unknown = SchedulerUnavailableError("no address of a scheduler is known yet")
    replies: Replies = {} if all(pool.clients for pool in pools) else {"": unknown}
    peers = [(client.peer, pool.tls) for pool in pools for client in pool.clients]
    return replies | await ask_peers(peers, command, seconds)


async def ask_peers(
    peers: Sequence[tuple[Peer, Tls | None]], command: scheduler_pb2.ConnectRequest, seconds: float
) -> Replies:
    """Sends one command to schedulers, as `ask_all` does."""
    command.command_id = 1
    answers = await asyncio.gather(*(_ask(*one, command, seconds) for one in peers))
    return {peer.target: answer for (peer, _), answer in zip(peers, answers, strict=True)}


async def _ask(
    peer: Peer, tls: Tls | None, command: scheduler_pb2.ConnectRequest, seconds: float
) -> scheduler_pb2.Reply | ApiError:
    where = f"the scheduler at {peer.target}"
    try:
        async with (
            asyncio.timeout(seconds),
            open_channel(peer.target, tls, server_name=peer.server_name) as channel,
        ):
            call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Connect()
            await call.write(command)
            async for response in call:
                for reply in response.replies:
                    return ApiError(409, reply.error, code="conflict") if reply.error else reply
    except grpc.aio.AioRpcError as error:
        return SchedulerUnavailableError(f"{where} is not reached ({error.code().name})")
    except TimeoutError:
        reason = f"{where} did not answer within {seconds:g} seconds"
        return ApiError(504, reason, code="timeout")
    return SchedulerUnavailableError(f"{where} ended the stream without a reply")


def add_stats(several: Sequence[scheduler_pb2.Stats]) -> scheduler_pb2.Stats:
    """Returns the sum of those of at least one; what is so is so at every scheduler."""
    total = scheduler_pb2.Stats()
    for field in scheduler_pb2.Stats.DESCRIPTOR.fields:
        values = [getattr(one, field.name) for one in several]
        if isinstance(values[0], bool):
            setattr(total, field.name, all(values))
        elif isinstance(values[0], int):
            setattr(total, field.name, sum(values))
        else:
            columns = zip_longest(*values, fillvalue=0)
            getattr(total, field.name).extend(sum(column) for column in columns)
    return total
