"""What the objects in the bodies of requests are made of."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from optimist_gateway.core.error import Path

MAX_PARTS = 4096
INT32_MAX = 2**31 - 1
UNSUPPORTED = "unsupported_value"
WITHOUT_EFFECT = frozenset(
    # Of requests.
    {"include_obfuscation", "metadata", "prompt_cache_key", "prompt_cache_options"}
    | {"prompt_cache_retention", "safety_identifier", "service_tier", "store", "stream_options"}
    | {"user", "context", "generate_summary", "mode"}
    # Of answers, which clients send back.
    | {"annotations", "async", "async_", "audio", "caller", "created_by", "data", "id", "logprobs"}
    | {"encrypted_content", "name", "namespace", "parsed", "parsed_arguments", "phase", "signature"}
    | {"reasoning_details", "status", "thinking_blocks", "type"}
    # Of tools.
    | {"allowed_callers", "defer_loading", "output_schema"}
)
"""Fields that are known and change nothing; others that no body declares are named."""
# Which ones there are is known when the scheduler is reached.
TokenId = Annotated[int, Field(json_schema_extra={"minimum": 0})]


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


def only(*harmless: Any) -> BeforeValidator:
    """Refuses all values of a field but null and these, which ask for nothing."""

    def check(value: object) -> object:
        # Without the types, True would pass as 1 and 0 as False.
        if value is None or any(type(value) is type(one) and value == one for one in harmless):
            return value
        raise PydanticCustomError(UNSUPPORTED, "is not supported by this server")

    return BeforeValidator(check)


def invalid(param: str, message: str, code: str = "invalid_value") -> PydanticCustomError:
    """Returns the error of a field, with a message that needs no field name in front."""
    return PydanticCustomError(code, "{message}", {"message": message, "param": param})


class Body(BaseModel):
    """Base of every object in a request.

    Lists and mappings end at their first error: pydantic gathers all there are, and a body has room
    for a hundred thousand.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, body: object) -> object:
        if not isinstance(body, dict):
            return body
        return {name: _whole(value) for name, value in body.items()}

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Returns those of some fields that are not null."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def take_unknown(self) -> list[Path]:
        """Removes fields that are not known, also in all objects below.

        Returns where they were, and where something is that is left out, with its type.
        """
        unknown: list[Path] = []
        waiting: list[tuple[Path, Any]] = [((), self)]
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, LeftOut):
                unknown.append((*path, f"type={value.type}"))
            below: Iterable[tuple[str | int, Any]] = enumerate(value)
            if isinstance(value, Body):
                below = value.__dict__.items()
                if extra := value.model_extra:
                    unknown += [(*path, name) for name in extra if name not in WITHOUT_EFFECT]
                    extra.clear()
            for key, one in reversed([*below]):
                # All of a list are objects, or none.
                first = next(iter(one), None) if isinstance(one, list) else one
                if isinstance(first, Body):
                    waiting.append(((*path, key), one))
        return unknown


OTHER = "another"


def tag_of(tags: Mapping[str | None, str]) -> Discriminator:
    """Tells bodies apart by their `type`, for which there are tags; others are `OTHER`.

    No field may have the name of a tag, which the paths of errors have.
    """

    def tag(value: Any) -> str:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return tags.get(kind, OTHER) if isinstance(kind, str | None) else OTHER

    return Discriminator(tag)


class LeftOut(Body):
    """What is not served, such as a tool that does not run here: it is left out, and named."""

    model_config = ConfigDict(extra="ignore")

    type: str


_THOUGHTS = ("reasoning", "reasoning_text", "redacted_thinking", "summary_text", "thinking")
_PARTS = ("text", "input_text", "output_text", "refusal", *_THOUGHTS)


def _is_read(kind: object) -> object:
    if kind not in _PARTS:
        raise ValueError(f"{kind!r:.40} is not read; this model reads text only")
    return kind


class Part(Body):
    """A piece of a content array; of an earlier answer also a refusal, or what was thought."""

    type: Annotated[str, BeforeValidator(_is_read), Field(json_schema_extra={"enum": _PARTS})] = (
        "text"
    )
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if self.type in _THOUGHTS:
            self.thinking, self.text = self.thinking or self.text or "", ""
        elif self.text is None:
            if not self.model_fields_set.intersection(("text", "refusal")):
                raise ValueError("must have a text")
            self.text = self.refusal or ""
        return self


Content = str | Annotated[list[Part | str], Field(fail_fast=True, max_length=MAX_PARTS)]


def content_text(content: str | list[Any] | None, *, of_thoughts: bool = False) -> str:
    """Returns the text of a content, without thoughts or of thoughts alone: its parts, joined."""
    if not isinstance(content, list):
        return "" if of_thoughts else content or ""
    if of_thoughts:
        return "".join(part.thinking or "" for part in content if isinstance(part, Part))
    return "".join(part if isinstance(part, str) else part.text for part in content)
