"""GET /version."""

from importlib.metadata import version

from fastapi import APIRouter


def version_router() -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter()
    installed = version("optimist")

    @router.get("/version")
    async def optimist_version() -> dict[str, str]:
        """Tells the version of Optimist."""
        return {"version": installed}

    return router
