"""GET /health and /metrics."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, Response

from optimist_gateway.generation import Service
from optimist_gateway.scheduler_client import SchedulerUnavailableError


def health_router(service: Service) -> APIRouter:
    """Returns the endpoints."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> Response:
        """Answers 200 if requests can be served, else 503 with the reason."""
        try:
            service.client.description  # noqa: B018 (it raises)
        except SchedulerUnavailableError as error:
            return JSONResponse({"status": "unavailable", "reason": str(error)}, 503)
        return JSONResponse({"status": "ok"})

    # Load generators ask with HEAD whether there are metrics.
    @router.api_route("/metrics", methods=["GET", "HEAD"], include_in_schema=False)
    async def metrics() -> Response:
        """Returns all metrics in the format of Prometheus."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router
