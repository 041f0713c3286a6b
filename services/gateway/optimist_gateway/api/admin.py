"""POST /admin/pause and /admin/resume, GET /admin/stats: for admin keys only."""

from typing import Any

from fastapi import APIRouter, Request
from google.protobuf.json_format import MessageToDict

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.api.errors import ApiError, scheduler_unavailable
from optimist_gateway.scheduler.admin import PAUSE_MODES, CommandRefusedError, SchedulerAdmin
from optimist_gateway.scheduler.request_stream import SchedulerUnavailableError

REPLY_SECONDS = 5.0
PAUSE_SECONDS = 60
MAX_PAUSE_SECONDS = 3600


def admin_router(admin: SchedulerAdmin) -> APIRouter:
    """Returns the endpoints; `Authentication` lets nobody but admins reach them."""
    router = APIRouter(prefix="/admin", include_in_schema=False)

    @router.post("/pause")
    async def pause(request: Request) -> dict[str, Any]:
        """Stops planning; answers once nothing runs any more, or takes it back in time."""
        mode, timeout_seconds = _mode(request), _timeout_seconds(request)
        command = scheduler_pb2.ConnectRequest(pause=scheduler_pb2.Pause(mode=PAUSE_MODES[mode]))
        await _ask(admin, command, timeout_seconds)
        return {"status": "paused", "mode": mode}

    @router.post("/resume")
    async def resume() -> dict[str, Any]:
        """Goes on after a pause."""
        command = scheduler_pb2.ConnectRequest(resume=scheduler_pb2.Resume())
        await _ask(admin, command, REPLY_SECONDS)
        return {"status": "running"}

    @router.get("/stats")
    async def stats() -> dict[str, Any]:
        """Returns the scheduler's figures by their names in the contract."""
        command = scheduler_pb2.ConnectRequest(get_stats=scheduler_pb2.GetStats())
        reply = await _ask(admin, command, REPLY_SECONDS)
        figures = MessageToDict(
            reply.stats, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return {name: _plain(value) for name, value in figures.items()}

    return router


def _plain(value: Any) -> Any:
    """Returns a value with numbers for 64-bit integers, which protobuf's JSON has as strings."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, str) and value.lstrip("-").isdecimal() else value


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


async def _ask(
    admin: SchedulerAdmin, command: scheduler_pb2.ConnectRequest, seconds: float
) -> scheduler_pb2.Reply:
    try:
        return await admin.ask(command, seconds)
    except SchedulerUnavailableError as error:
        raise scheduler_unavailable(str(error)) from None
    except CommandRefusedError as error:
        raise ApiError(409, str(error), code="conflict") from None
    except TimeoutError:
        raise ApiError(
            504, f"the scheduler did not come to rest within {seconds:g} seconds", code="timeout"
        ) from None
