"""GET /v1/models and /v1/models/{id}."""

import time
from typing import Any

from fastapi import APIRouter

from optimist_gateway.fronts.openai.chunk_writer import SYNTHETIC_FINGERPRINT
from optimist_gateway.generation.generation import Service
from optimist_gateway.schedulers.request_stream import SchedulerUnavailableError


def model_router(service: Service) -> APIRouter:
    """Returns the endpoints."""
    router = APIRouter()
    created = int(time.time())

    def model() -> dict[str, Any]:
        data: dict[str, Any] = {
            "id": service.model_name,
            "object": "model",
            "created": created,
            "owned_by": "optimist",
        }
        try:
            # The name of the field is vLLM's.
            data["max_model_len"] = service.schedulers.description.max_model_len
            if service.schedulers.description.is_synthetic:
                data["system_fingerprint"] = SYNTHETIC_FINGERPRINT
        except SchedulerUnavailableError:
            data["max_model_len"] = None
        return data

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """Lists the one model."""
        return {"object": "list", "data": [model()]}

    # A name may have slashes, as hub names do.
    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        """Describes the model."""
        service.require_model(name)
        return model()

    return router
