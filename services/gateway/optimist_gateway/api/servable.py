"""What can be refused before anything of a request is looked at."""

from optimist_gateway.api.errors import ApiError
from optimist_gateway.api.requests import GenerationBody
from optimist_gateway.generation import Service


def require_model(service: Service, name: str, param: str = "model") -> None:
    """Raises ApiError, which names `param`, if this is not the model that is served."""
    if name != service.model_name:
        raise ApiError(
            404,
            f"The model `{name[:100]}` does not exist; this server has `{service.model_name}`.",
            param=param,
            code="model_not_found",
        )


def require_servable(service: Service, body: GenerationBody) -> None:
    """Raises ApiError if a request asks for another model or for too much."""
    require_model(service, body.model)
    if body.stream_options is not None and not body.stream:
        raise ApiError(
            400,
            "stream_options is only allowed when stream is true",
            param="stream_options",
            code="invalid_value",
        )
    max_n = service.limits.max_n
    if body.n is not None and body.n > max_n:
        raise ApiError(
            400,
            f"n: must be at most {max_n} on this server",
            param="n",
            code="invalid_value",
        )
