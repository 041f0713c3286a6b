"""What the objects in the bodies of requests are made of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

ID_FORMAT = "token-id"
"""Format of numbers that are tokens of the model, in the document of the API."""
MAX_PARTS = 4096
INT32_MAX = 2**31 - 1
# No object has as many fields.
MAX_FIELDS = 128


def encodable(text: str) -> str:
    """Refuses halves of surrogate pairs, which JSON can carry and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be Unicode text without halves of surrogate pairs") from None
    return text


Text = Annotated[str, AfterValidator(encodable)]
# Which ones there are is known when the scheduler is reached.
TokenId = Annotated[int, Field(json_schema_extra={"format": ID_FORMAT, "minimum": 0})]


def _whole(value: Any, depth: int = 2) -> Any:
    """Returns numbers that are whole as such: 1.0 and 1 are one in JSON and in JSON schema.

    They may stand so many lists deep: 2 in prompts and predictions of tokens.
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


def invalid(param: str, message: str, code: str = "invalid_value") -> PydanticCustomError:
    """Returns the error of a field, with a message that needs no field name in front."""
    return PydanticCustomError(code, "{message}", {"message": message, "param": param})


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

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Returns those of some fields that are not null."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def _with_one_unknown(cls, names: Iterable[str]) -> list[str]:
        """Returns the known names and the first unknown one, which is what the error names."""
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next(name for name in names if name not in known)
        return [name for name in names if name in known or name == unknown]


class TextPart(Body):
    """A piece of text in a content array."""

    type: Literal["text"]
    text: Text


Content = Text | Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_PARTS)]


def content_text(content: str | list[Any]) -> str:
    """Returns the text of a content, whose parts, each with a `text`, join to it."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


_NULL = {"type": "null"}


def exactly_one(names: Sequence[str]) -> Callable[[dict[str, Any]], None]:
    """Returns what makes a body's schema say that exactly one of some fields is not null."""

    def write(schema: dict[str, Any]) -> None:
        nulls: dict[str, Any] = dict.fromkeys(names, _NULL)
        _alternate(schema, [nulls | {name: _not_null(schema, name)} for name in names])

    return write


def _alternate(schema: dict[str, Any], forms: Sequence[dict[str, Any]]) -> None:
    """Turns the schema of an object into forms, each with properties that it does not share.

    Those of them that may not be null are required.
    """
    properties, required = schema.pop("properties"), schema.pop("required", [])
    texts = ("title", "description")
    kept: dict[str, Any] = {name: schema.pop(name) for name in texts if name in schema}
    alternatives = [
        {
            **schema,
            "properties": properties | form,
            "required": [*required, *(name for name, value in form.items() if value != _NULL)],
        }
        for form in forms
    ]
    schema.clear()
    schema.update(kept, anyOf=alternatives)


def _not_null(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the schema of a field without null."""
    field = schema["properties"][name]
    others = [one for one in field["anyOf"] if one != _NULL]
    rest = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
    return {**rest, **others[0]} if len(others) == 1 else {**rest, "anyOf": others}


def content_or_calls(schema: dict[str, Any]) -> None:
    """Makes the schema of an assistant's message say that it has content, calls, or both."""
    calls = {**_not_null(schema, "tool_calls"), "minItems": 1}
    _alternate(schema, [{"content": _not_null(schema, "content")}, {"tool_calls": calls}])


@dataclass(frozen=True)
class KnownParameters:
    """Parameters of an endpoint that are known and not supported."""

    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Those that are refused, with the values that ask for nothing beyond the default."""
    by_value: frozenset[str] = frozenset()
    """Which of them have other values that are supported."""


# vLLM's earlier names of `structured_outputs`.
GUIDED: dict[str, tuple[Any, ...]] = {
    f"guided_{name}": () for name in ("choice", "decoding_backend", "grammar", "json", "regex")
}


def drop_unsupported(body: Mapping[str, Any], known: KnownParameters) -> dict[str, Any]:
    """Returns the body without parameters that ask for the default.

    Raises:
        PydanticCustomError: A parameter asks for something that is not supported; its type is
            OpenAI's error code and its context has `param`.
    """
    kept = {}
    for name, value in body.items():
        if name not in known.refused:
            kept[name] = value
        elif value is not None and not _is_harmless(value, known.refused[name]):
            code = "unsupported_value" if name in known.by_value else "unsupported_parameter"
            what = "This value of" if name in known.by_value else "The parameter"
            raise invalid(name, f"{what} '{name}' is not supported.", code)
    return kept


def _is_harmless(value: Any, harmless: tuple[Any, ...]) -> bool:
    # Without the types, True would pass as 1 and 0 as False.
    return any(type(value) is type(one) and value == one for one in harmless)
