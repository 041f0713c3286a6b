"""GET /v1/models and /v1/models/{id}."""

import time
from typing import Annotated, Literal, NotRequired

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from optimist_gateway.fronts.openai.chunk_writer import SYNTHETIC_FINGERPRINT
from optimist_gateway.fronts.openai.servable import require_model
from optimist_gateway.generation.generation import Service
from optimist_gateway.schedulers.request_stream import SchedulerUnavailableError


class Model(TypedDict):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["optimist"]
    max_model_len: int | None
    system_fingerprint: NotRequired[str]


class ModelList(TypedDict):
    """All models: the one."""

    object: Literal["list"]
    data: Annotated[list[Model], Field(min_length=1, max_length=1)]


def model_router(service: Service) -> APIRouter:
    """Returns the endpoints."""
    router = APIRouter()
    created = int(time.time())

    def model() -> Model:
        data: Model = {
            "id": service.model_name,
            "object": "model",
            "created": created,
            "owned_by": "optimist",
            "max_model_len": None,
        }
        try:
            # The name of the field is vLLM's.
            data["max_model_len"] = service.schedulers.description.max_model_len
            if service.schedulers.description.is_synthetic:
                data["system_fingerprint"] = SYNTHETIC_FINGERPRINT
        except SchedulerUnavailableError:
            pass
        return data

    @router.get("/v1/models")
    async def models() -> Response:
        """Lists the one model."""
        answer: ModelList = {"object": "list", "data": [model()]}
        return JSONResponse(answer)

    # A name may have slashes, as hub names do.
    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        """Describes the model."""
        require_model(service, name)
        return JSONResponse(model())

    return router
