"""What the objects in the bodies of requests are made of."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from optimist_gateway.api.openapi_limits import ID_FORMAT

MAX_PARTS = 4096


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


def _whole(value: Any) -> Any:
    """Returns numbers that are whole as such: JSON tells 1.0 not from 1, nor does JSON schema."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list) and not {float, list}.isdisjoint(map(type, value)):
        return [_whole(one) for one in value]
    return value


class Body(BaseModel):
    """Base of every object in a request: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, body: object) -> object:
        if not isinstance(body, dict):
            return body
        return {name: _whole(value) for name, value in body.items()}


class TextPart(Body):
    """A piece of text in a content array."""

    type: Literal["text"]
    text: Text


Content = Text | Annotated[list[TextPart], Field(max_length=MAX_PARTS)]


def content_text(content: str | list[TextPart]) -> str:
    """Returns the text of a content, whose parts join without anything between them."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
