"""Refuses tokens that the model does not have."""

from collections.abc import Sequence

from optimist_gateway.core.model_description import ModelDescription
from optimist_gateway.core.prediction import first_unknown_token
from optimist_gateway.fronts.openai.errors import ApiError


def require_known(token_ids: Sequence[int], param: str, model: ModelDescription) -> None:
    """Raises ApiError, which names `param`, if a token is not one of the model's."""
    unknown = first_unknown_token(token_ids, model.vocab_size)
    if unknown is not None:
        raise ApiError(
            400,
            f"{param}: {unknown} is not a token of this model (0 to {model.vocab_size - 1})",
            param=param,
            code="invalid_value",
        )
