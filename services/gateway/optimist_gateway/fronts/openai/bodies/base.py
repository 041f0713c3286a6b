"""What the objects in the bodies of requests are made of."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticKnownError

from optimist_gateway.fronts.openai.openapi.limits import ID_FORMAT

MAX_PARTS = 4096
# No object has as many fields.
MAX_FIELDS = 128


def _encodable(text: str) -> str:
    """Refuses halves of surrogate pairs, which JSON can carry and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be Unicode text without halves of surrogate pairs") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
# Which ones there are is known when the scheduler is reached.
TokenId = Annotated[int, Field(json_schema_extra={"format": ID_FORMAT, "minimum": 0})]


def _whole(value: Any, depth: int = 2) -> Any:
    """Returns numbers that are whole as such: JSON tells 1.0 not from 1, nor does JSON schema.

    Args:
        value: What a field has.
        depth: How many lists deep numbers may stand: 2 in prompts and predictions of tokens.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if depth and isinstance(value, list) and not {float, list}.isdisjoint(map(type, value)):
        return [_whole(one, depth - 1) for one in value]
    return value


def at_most(number: int) -> BeforeValidator:
    """Refuses larger mappings; pydantic itself would look at every value first."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > number:
            counts = {"max_length": number, "actual_length": len(value)}
            raise PydanticKnownError("too_long", {"field_type": "Dictionary", **counts})
        return value

    return BeforeValidator(check)


class Body(BaseModel):
    """Base of every object in a request: unknown fields are refused.

    Lists and mappings end at their first error: pydantic gathers all there are, and a body has room
    for a hundred thousand.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, body: object) -> object:
        if not isinstance(body, dict):
            return body
        names = body if len(body) <= MAX_FIELDS else cls._with_one_unknown(body)
        return {name: _whole(body[name]) for name in names}

    @classmethod
    def _with_one_unknown(cls, names: Iterable[str]) -> list[str]:
        """Returns the known names and the first unknown one, which is what the error tells of."""
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next(name for name in names if name not in known)
        return [name for name in names if name in known or name == unknown]


class TextPart(Body):
    """A piece of text in a content array."""

    type: Literal["text"]
    text: Text


Content = Text | Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_PARTS)]


def content_text(content: str | list[TextPart]) -> str:
    """Returns the text of a content, whose parts join without anything between them."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
