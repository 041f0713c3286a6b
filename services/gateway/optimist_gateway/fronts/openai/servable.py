"""What can be refused before anything of a request is looked at."""

from optimist_gateway.fronts.openai.bodies.generation import GenerationBody
from optimist_gateway.fronts.openai.errors import ApiError
from optimist_gateway.generation.generation import Service


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
    limits = service.limits
    _require_at_most("n", body.n or 1, limits.max_n)
    _require_at_most("best_of", body.num_candidates(), limits.max_n)
    _require_at_most("prompt", body.num_prompts(), limits.max_prompts, " prompts")
    # More choices than there are places would never be admitted.
    num_choices = body.num_prompts() * body.num_candidates()
    _require_at_most("prompt", num_choices, limits.max_choices, " answers to all prompts")


def _require_at_most(param: str, number: int, limit: int, unit: str = "") -> None:
    if number > limit:
        raise ApiError(
            400,
            f"{param}: must be at most {limit}{unit} on this server",
            param=param,
            code="invalid_value",
        )
