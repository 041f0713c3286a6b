"""POST /admin/pause, /admin/resume and /admin/priority, GET /admin/stats: for admin keys only."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from google.protobuf.json_format import MessageToDict

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.core.error import ApiError, naming, scheduler_unavailable
from optimist_gateway.core.request import MAX_PRIORITY, MAX_REQUEST_ID_CHARACTERS
from optimist_gateway.generation.generation import Service
from optimist_gateway.schedulers.admin import PAUSE_MODES, SchedulerAdmin
from optimist_gateway.schedulers.pool import add_stats
from optimist_gateway.schedulers.requests import SchedulerUnavailableError

REPLY_SECONDS = 5.0
PAUSE_SECONDS = 60
MAX_PAUSE_SECONDS = 3600


def admin_router(service: Service) -> APIRouter:
    """Returns the endpoints; `Authentication` lets nobody but admins reach them."""
    router = APIRouter(prefix="/admin", include_in_schema=False)
    admin = service.admin

    @router.post("/pause")
    async def pause(
        mode: Literal["keep", "wait", "abort"] = "keep",
        timeout_seconds: Annotated[int, Query(ge=1, le=MAX_PAUSE_SECONDS)] = PAUSE_SECONDS,
    ) -> dict[str, Any]:
        """Stops planning at all schedulers; answers once nothing runs any more.

        A scheduler that does not come to rest in time takes it back.
        """
        command = scheduler_pb2.ConnectRequest(pause=scheduler_pb2.Pause(mode=PAUSE_MODES[mode]))
        await _ask_all(admin, command, timeout_seconds)
        return {"status": "paused", "mode": mode}

    @router.post("/resume")
    async def resume() -> dict[str, Any]:
        """Goes on after a pause, at all schedulers."""
        command = scheduler_pb2.ConnectRequest(resume=scheduler_pb2.Resume())
        await _ask_all(admin, command, REPLY_SECONDS)
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
        replies = await admin.ask(command, REPLY_SECONDS)
        if all(isinstance(reply, Exception) for reply in replies.values()):
            raise _failure(replies)
        each: dict[str, dict[str, Any]] = {}
        several = []
        for target, reply in replies.items():
            if isinstance(reply, Exception):
                each[target] = {"error": str(reply)}
            else:
                each[target] = _figures(reply.stats)
                several.append(reply.stats)
        return {**_figures(add_stats(several)), "schedulers": each}

    return router


async def set_priority(service: Service, request_id: str, priority: int) -> int:
    """Changes how urgent a request in progress is, at whichever schedulers its choices are.

    Args:
        service: Which has the schedulers.
        request_id: The id of the answer, or the client's own name of the request.
        priority: The smaller, the sooner.

    Returns:
        How many choices of the request were found.

    Raises:
        ApiError: An argument is wrong, no such request is in progress, no scheduler honours
            priorities, or those that may have the request did not answer.
    """
    if not 0 < len(request_id) <= MAX_REQUEST_ID_CHARACTERS:
        raise _wrong("request_id", f"must have 1 to {MAX_REQUEST_ID_CHARACTERS} characters")
    if abs(priority) > MAX_PRIORITY:
        raise _wrong("priority", f"must be from {-MAX_PRIORITY} to {MAX_PRIORITY}")
    try:
        with naming(dict):
            service.schedulers.description.require_priorities()
    except SchedulerUnavailableError as error:
        raise scheduler_unavailable(str(error)) from None
    change = scheduler_pb2.SetPriority(name=request_id, priority=priority)
    command = scheduler_pb2.ConnectRequest(set_priority=change)
    replies = await service.admin.ask(command, REPLY_SECONDS)
    number = service.schedulers.set_waiting_priority(request_id, priority) + sum(
        reply.num_requests for reply in replies.values() if not isinstance(reply, Exception)
    )
    if number:
        return number
    if failed := {to: reply for to, reply in replies.items() if isinstance(reply, Exception)}:
        raise _failure(failed)
    raise ApiError(
        404,
        f"request_id: no request {request_id} is in progress",
        param="request_id",
        code="request_not_found",
    )


def _figures(stats: scheduler_pb2.Stats | None) -> dict[str, Any]:
    figures = MessageToDict(
        stats or scheduler_pb2.Stats(),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    return {name: _plain(value) for name, value in figures.items()}


def _plain(value: Any) -> Any:
    """Returns a value with numbers for 64-bit integers, which protobuf's JSON has as strings."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, str) and value.lstrip("-").isdecimal() else value


def _wrong(param: str, fault: str) -> ApiError:
    return ApiError(400, f"{param}: {fault}", param=param, code="invalid_value")


async def _ask_all(
    admin: SchedulerAdmin, command: scheduler_pb2.ConnectRequest, seconds: float
) -> None:
    """Sends a command to all schedulers; raises ApiError that names those that failed."""
    replies = await admin.ask(command, seconds)
    if any(isinstance(reply, Exception) for reply in replies.values()):
        raise _failure(replies)


def _failure(replies: Mapping[str, scheduler_pb2.Reply | Exception]) -> ApiError:
    """Returns the error of the schedulers that failed, which names the others too."""
    errors = [reply for reply in replies.values() if isinstance(reply, Exception)]
    text = "; ".join(str(error) for error in errors)
    done = [target for target, reply in replies.items() if not isinstance(reply, Exception)]
    if done:
        text += f"; done at {', '.join(done)}"
    if any(isinstance(error, SchedulerUnavailableError) for error in errors):
        return scheduler_unavailable(text)
    if any(isinstance(error, TimeoutError) for error in errors):
        return ApiError(504, text, code="timeout")
    return ApiError(409, text, code="conflict")
