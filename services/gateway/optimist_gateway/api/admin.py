"""Probes, metrics, and the administration, which is for admin keys only.

POST /admin/pause, /admin/resume and /admin/priority, GET /admin/stats; GET /health, /ready,
/live and /metrics.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any, Literal

import grpc
from fastapi import APIRouter, Query
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, Response

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.network.channel import Tls, open_channel
from optimist_common.network.endpoints import Peer
from optimist_gateway.core.error import ApiError, FieldError
from optimist_gateway.core.request import MAX_PRIORITY, MAX_REQUEST_ID_CHARACTERS
from optimist_gateway.core.schedulers import PRIORITY
from optimist_gateway.generation.generation import Service
from optimist_gateway.schedulers.pool import SchedulerPool
from optimist_gateway.schedulers.requests import SchedulerUnavailableError

REPLY_SECONDS = 5.0
PAUSE_SECONDS = 60
MAX_PAUSE_SECONDS = 3600


def admin_router(service: Service) -> APIRouter:
    """Returns the endpoints; `Authentication` lets nobody but admins reach them."""
    router = APIRouter(prefix="/admin", include_in_schema=False)

    @router.post("/pause")
    async def pause(
        mode: Literal["keep", "wait", "abort"] = "keep",
        timeout_seconds: Annotated[int, Query(ge=1, le=MAX_PAUSE_SECONDS)] = PAUSE_SECONDS,
    ) -> dict[str, Any]:
        """Stops planning at all schedulers of all models; answers once nothing runs any more.

        A scheduler that does not come to rest in time takes it back.
        """
        wanted = scheduler_pb2.PauseMode.Value(f"PAUSE_MODE_{mode.upper()}")
        command = scheduler_pb2.ConnectRequest(pause=scheduler_pb2.Pause(mode=wanted))
        await _obey_all(service.pools, command, timeout_seconds)
        return {"status": "paused", "mode": mode}

    @router.post("/resume")
    async def resume() -> dict[str, Any]:
        """Goes on after a pause, at all schedulers."""
        command = scheduler_pb2.ConnectRequest(resume=scheduler_pb2.Resume())
        await _obey_all(service.pools, command, REPLY_SECONDS)
        return {"status": "running"}

    @router.post("/priority")
    async def change_priority(priority: int, request_id: str = "") -> dict[str, Any]:
        """Changes how urgent a request in progress is, whichever gateway it came through."""
        num_choices = await set_priority(service, request_id, priority)
        return {"request_id": request_id, "priority": priority, "num_choices": num_choices}

    @router.get("/stats")
    async def stats() -> dict[str, Any]:
        """Returns the schedulers' figures by their names in the contract.

        Sums over all that answer, and below `schedulers` those of each, or why there are none.
        """
        command = scheduler_pb2.ConnectRequest(get_stats=scheduler_pb2.GetStats())
        replies = await ask_all(service.pools, command, REPLY_SECONDS)
        known = [one.stats for one in replies.values() if not isinstance(one, ApiError)]
        if not known:
            raise _failure(replies)
        each = {
            target: {"error": str(one)} if isinstance(one, ApiError) else _figures(one.stats)
            for target, one in replies.items()
        }
        return {**_figures(add_stats(known)), "schedulers": each}

    return router


async def set_priority(service: Service, request_id: str, priority: int) -> int:
    """Changes how urgent a request in progress is, at whichever schedulers its choices are.

    `request_id` is the id of the answer, or the client's own name of the request. Returns how many
    choices of it were found; raises ApiError for none, or if no scheduler honours priorities.
    """
    if not 0 < len(request_id) <= MAX_REQUEST_ID_CHARACTERS:
        fault = f"must have 1 to {MAX_REQUEST_ID_CHARACTERS} characters"
        raise FieldError(("request_id",), fault)
    if abs(priority) > MAX_PRIORITY:
        raise FieldError(("priority",), f"must be from {-MAX_PRIORITY} to {MAX_PRIORITY}")
    pools = _with_priorities(service.pools)
    change = scheduler_pb2.SetPriority(name=request_id, priority=priority)
    command = scheduler_pb2.ConnectRequest(set_priority=change)
    replies = await ask_all(pools, command, REPLY_SECONDS)
    errors = {target: one for target, one in replies.items() if isinstance(one, ApiError)}
    number = sum(pool.set_waiting_priority(request_id, priority) for pool in pools)
    number += sum(one.num_requests for one in replies.values() if not isinstance(one, ApiError))
    if number:
        return number
    if errors:
        raise _failure(errors)
    raise ApiError(
        404,
        f"request_id: no request {request_id} is in progress",
        param="request_id",
        code="request_not_found",
    )


def _figures(stats: scheduler_pb2.Stats) -> dict[str, Any]:
    figures = {name: getattr(stats, name) for name in stats.DESCRIPTOR.fields_by_name}
    return {
        name: value if isinstance(value, int) else list(value) for name, value in figures.items()
    }


def _with_priorities(pools: Sequence[SchedulerPool]) -> list[SchedulerPool]:
    """Returns the pools that may honour priorities: those that are not reached may as well.

    Raises FieldError if no scheduler that is reached honours priorities, and
    SchedulerUnavailableError if none is reached.
    """
    reached = [pool.description for pool in pools if pool.connected] or [pools[0].description]
    if all(PRIORITY in one.unsupported_fields for one in reached):
        reached[0].require_supported([PRIORITY])
    return [
        pool
        for pool in pools
        if not (pool.connected and PRIORITY in pool.description.unsupported_fields)
    ]


async def _obey_all(
    pools: Sequence[SchedulerPool], command: scheduler_pb2.ConnectRequest, seconds: float
) -> None:
    """Sends a command to all schedulers; raises ApiError that names those that failed."""
    replies = await ask_all(pools, command, seconds)
    if any(isinstance(one, ApiError) for one in replies.values()):
        raise _failure(replies)


def _failure(replies: Mapping[str, scheduler_pb2.Reply | ApiError]) -> ApiError:
    """Returns the error of the schedulers that failed, which names the others too."""
    errors = [one for one in replies.values() if isinstance(one, ApiError)]
    text = "; ".join(map(str, errors))
    if done := [target for target, one in replies.items() if not isinstance(one, ApiError)]:
        text += f"; done at {', '.join(done)}"
    worst = min(errors, key=lambda error: (503, 504, 409).index(error.status))
    return ApiError(worst.status, text, code=worst.code)


def unavailable_models(service: Service) -> dict[str, str]:
    """Returns why requests of models cannot be served now, by the models' names."""
    reasons = {name: one.unready_reason() for name, one in service.models.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def unready_reason(service: Service) -> str | None:
    """Returns why requests cannot be served now, or None if they can: of one model."""
    if service.admission.is_closed:
        return "the server is shutting down"
    reasons = unavailable_models(service)
    if len(reasons) < len(service.models):
        return None
    if len(reasons) == 1:
        return next(iter(reasons.values()))
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def health_router(service: Service) -> APIRouter:
    """Returns the endpoints of probes, to which answers cost nothing, and metrics."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> Response:
        """Answers 200 if requests of a model can be served, else 503 with the reason.

        Says how many schedulers are known, and how many of them are connected and sound, and of
        several models why some cannot be served.
        """
        reason, models = unready_reason(service), unavailable_models(service)
        # The reason names all of them otherwise.
        detail = {"unavailable_models": models} if models and reason is None else {}
        connected = [client for pool in service.pools for client in pool.connected]
        counts = {
            "known": sum(len(pool.clients) for pool in service.pools),
            "connected": len(connected),
            "sound": sum(client.is_sound for client in connected),
        }
        return _answer(reason, schedulers=counts, **detail)

    @router.get("/ready")
    async def ready() -> Response:
        """Answers as /health does."""
        return _answer(unready_reason(service))

    @router.get("/live")
    async def live() -> Response:
        """Answers 200: a process that is stopped, or whose event loop is stuck, gives no answer.

        Nothing else is asked: to start the gateway again mends no scheduler.
        """
        return _answer(None)

    # Load generators ask with HEAD whether there are metrics.
    @router.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        """Returns all metrics in the format of Prometheus."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router


def _answer(reason: str | None, **detail: Any) -> Response:
    if reason is None:
        return JSONResponse({"status": "ok", **detail})
    unavailable = {"status": "unavailable", "reason": reason, **detail}
    return JSONResponse(unavailable, 503, {"retry-after": "1"})


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
