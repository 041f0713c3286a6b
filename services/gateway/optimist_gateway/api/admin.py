"""POST /admin/pause and /admin/resume, GET /admin/stats: for admin keys only."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from fastapi import APIRouter, Request
from google.protobuf.json_format import MessageToDict

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.api.errors import ApiError, scheduler_unavailable
from optimist_gateway.scheduler.admin import PAUSE_MODES, SchedulerAdmin
from optimist_gateway.scheduler.request_stream import SchedulerUnavailableError

REPLY_SECONDS = 5.0
PAUSE_SECONDS = 60
MAX_PAUSE_SECONDS = 3600


def admin_router(admin: SchedulerAdmin) -> APIRouter:
    """Returns the endpoints; `Authentication` lets nobody but admins reach them."""
    router = APIRouter(prefix="/admin", include_in_schema=False)

    @router.post("/pause")
    async def pause(request: Request) -> dict[str, Any]:
        """Stops planning at all schedulers; answers once nothing runs any more.

        A scheduler that does not come to rest in time takes it back.
        """
        mode, timeout_seconds = _mode(request), _timeout_seconds(request)
        command = scheduler_pb2.ConnectRequest(pause=scheduler_pb2.Pause(mode=PAUSE_MODES[mode]))
        await _ask_all(admin, command, timeout_seconds)
        return {"status": "paused", "mode": mode}

    @router.post("/resume")
    async def resume() -> dict[str, Any]:
        """Goes on after a pause, at all schedulers."""
        command = scheduler_pb2.ConnectRequest(resume=scheduler_pb2.Resume())
        await _ask_all(admin, command, REPLY_SECONDS)
        return {"status": "running"}

    @router.get("/stats")
    async def stats() -> dict[str, Any]:
        """Returns the schedulers' figures by their names in the contract.

        Sums over all that answer, and below `schedulers` those of each, or why there are none.
        """
        command = scheduler_pb2.ConnectRequest(get_stats=scheduler_pb2.GetStats())
        replies = await admin.ask(command, REPLY_SECONDS)
        if all(isinstance(reply, Exception) for reply in replies.values()):
            raise _failure(replies)
        each = {target: _figures(reply) for target, reply in replies.items()}
        return {**_sum([one for one in each.values() if "error" not in one]), "schedulers": each}

    return router


def _figures(reply: scheduler_pb2.Reply | Exception) -> dict[str, Any]:
    if isinstance(reply, Exception):
        return {"error": str(reply)}
    figures = MessageToDict(
        reply.stats, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {name: _plain(value) for name, value in figures.items()}


def _plain(value: Any) -> Any:
    """Returns a value with numbers for 64-bit integers, which protobuf's JSON has as strings."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, str) and value.lstrip("-").isdecimal() else value


def _sum(several: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Adds figures; what is so is so at every scheduler."""
    total: dict[str, Any] = {}
    for name in several[0]:
        values = [one[name] for one in several]
        if isinstance(values[0], bool):
            total[name] = all(values)
        elif isinstance(values[0], list):
            total[name] = [sum(column) for column in zip_longest(*values, fillvalue=0)]
        else:
            total[name] = sum(values)
    return total


def _mode(request: Request) -> str:
    mode = request.query_params.get("mode", "keep")
    if mode not in PAUSE_MODES:
        raise ApiError(400, "mode: must be keep, wait or abort", param="mode", code="invalid_value")
    return mode


def _timeout_seconds(request: Request) -> int:
    text = request.query_params.get("timeout_seconds", str(PAUSE_SECONDS))
    if not (text.isdecimal() and len(text) < 9 and 1 <= int(text) <= MAX_PAUSE_SECONDS):
        raise ApiError(
            400,
            f"timeout_seconds: must be a whole number from 1 to {MAX_PAUSE_SECONDS}",
            param="timeout_seconds",
            code="invalid_value",
        )
    return int(text)


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
