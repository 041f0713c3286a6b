"""GET /health, /ready, /startup, /live, /version and /metrics."""

from importlib.metadata import version
from typing import Any, Literal, NotRequired

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from optimist_gateway.generation.generation import Service
from optimist_gateway.schedulers.requests import SchedulerUnavailableError


class Working(TypedDict):
    """Requests can be served."""

    status: Literal["ok"]


class SchedulerCounts(TypedDict):
    """How many schedulers there are."""

    known: int
    connected: int
    sound: int


class Healthy(Working):
    """Requests can be served, and by whom."""

    schedulers: SchedulerCounts


class Unavailable(TypedDict):
    """Requests cannot be served."""

    status: Literal["unavailable"]
    reason: str
    schedulers: NotRequired[SchedulerCounts]


class Version(TypedDict):
    """The version of Optimist."""

    version: str


class Health:
    """What probes get; asking costs nothing and reaches nobody."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._was_ready = False

    def unready_reason(self) -> str | None:
        """Returns why requests cannot be served now, or None if they can: by one scheduler."""
        if self._service.admission.is_closed:
            return "the server is shutting down"
        try:
            self._service.schedulers.description  # noqa: B018 (it raises)
        except SchedulerUnavailableError as error:
            return str(error)
        self._was_ready = True
        return "the engine hangs" if self._service.schedulers.is_hung else None

    def schedulers(self) -> SchedulerCounts:
        """Returns how many schedulers there are, and in what state."""
        clients = self._service.schedulers.clients
        connected = [client for client in clients if client.description is not None]
        return {
            "known": len(clients),
            "connected": len(connected),
            "sound": sum(client.is_sound for client in connected),
        }

    def is_ready(self) -> bool:
        """Returns whether requests can be served now."""
        return self.unready_reason() is None

    def unstarted_reason(self) -> str | None:
        """Returns why requests could never be served yet, or None once they could."""
        reason = self.unready_reason()
        return None if self._was_ready else reason

    def unalive_reason(self) -> str | None:
        """Returns why the engines should be started again, or None; one that works is enough.

        That this process lives shows in its answer: a stuck event loop gives none.
        """
        return "the engine hangs" if self._service.schedulers.is_hung else None


def health_router(service: Service, health: Health) -> APIRouter:
    """Returns the endpoints."""
    router = APIRouter()
    installed = version("optimist")

    @router.get("/health")
    async def get_health() -> Response:
        """Answers 200 if requests can be served, else 503 with the reason.

        Says how many schedulers are known, and how many of them are connected and sound.
        """
        return _answer(health.unready_reason(), schedulers=health.schedulers())

    @router.get("/ready")
    async def ready() -> Response:
        """Answers as /health does."""
        return _answer(health.unready_reason())

    @router.get("/startup")
    async def startup() -> Response:
        """Answers 503 until a scheduler has been reached, and 200 ever after."""
        return _answer(health.unstarted_reason())

    @router.get("/live")
    async def live() -> Response:
        """Answers 503 with the reason if the engine of every scheduler hangs, else 200."""
        return _answer(health.unalive_reason())

    @router.get("/version")
    async def optimist_version() -> Response:
        """Returns the version of Optimist."""
        answer: Version = {"version": installed}
        return JSONResponse(answer)

    # Load generators ask with HEAD whether there are metrics.
    @router.api_route("/metrics", methods=["GET", "HEAD"], include_in_schema=False)
    async def metrics() -> Response:
        """Returns all metrics in the format of Prometheus."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router


def _answer(reason: str | None, **detail: Any) -> Response:
    if reason is None:
        return JSONResponse({"status": "ok", **detail})
    unavailable = {"status": "unavailable", "reason": reason, **detail}
    return JSONResponse(unavailable, 503, {"retry-after": "1"})
