"""Names of fields in errors, for requests that were translated before they were checked."""

from collections.abc import Mapping
from typing import TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from optimist_gateway.fronts.openai.errors import ApiError, validation_error

B = TypeVar("B", bound=BaseModel)


class FieldNames:
    """What the fields of a translated request are called in the request that came.

    A name stands for all below it: with `messages[1]` as `input[0]`, `messages[1].content` is
    `input[0].content`. The longest name that fits counts.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def validated(self, model: type[B], body: Mapping[str, object]) -> B:
        """Returns a checked body.

        Raises:
            ApiError: Something is wrong with it; the error has the name of the field that came.
        """
        try:
            return model.model_validate(body)
        except ValidationError as error:
            details = [one | {"loc": ("body", *one["loc"])} for one in error.errors()]
            found = validation_error(RequestValidationError(details, body=dict(body)))
            raise self.renamed(found) from None

    def renamed(self, error: ApiError) -> ApiError:
        """Returns an error that names the field that came; it is the same object."""
        if error.param is None:
            return error
        old, new = error.param, self._new(error.param)
        error.param = new
        if error.message.startswith(f"{old}: "):
            error.message = new + error.message.removeprefix(old)
        return error

    def _new(self, param: str) -> str:
        known = max((name for name in self._names if _is_at(name, param)), key=len, default=None)
        return param if known is None else self._names[known] + param.removeprefix(known)


AS_THEY_ARE = FieldNames({})
"""For requests that come as they are checked."""


def _is_at(name: str, param: str) -> bool:
    """Tells whether a parameter is a field or something below it."""
    return param.startswith(name) and param[len(name) : len(name) + 1] in ("", ".", "[")
