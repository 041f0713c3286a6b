"""What the objects in the bodies of requests are made of."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_PARTS = 4096


def _encodable(text: str) -> str:
    """Refuses halves of surrogate pairs, which JSON can carry and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be Unicode text without halves of surrogate pairs") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]


class Body(BaseModel):
    """Base of every object in a request: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class TextPart(Body):
    """A piece of text in a content array."""

    type: Literal["text"]
    text: Text


Content = Text | Annotated[list[TextPart], Field(max_length=MAX_PARTS)]


def content_text(content: str | list[TextPart]) -> str:
    """Returns the text of a content, whose parts join without anything between them."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
