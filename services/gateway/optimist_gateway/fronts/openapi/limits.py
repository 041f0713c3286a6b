"""What of the OpenAPI document depends on the server: its model and its limits."""

from collections.abc import Iterator
from typing import Any

from optimist_gateway.core.model_description import ModelDescription
from optimist_gateway.core.request import Limits
from optimist_gateway.fronts.openai.bodies.base import ID_FORMAT

_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")


def set_limits(schemas: dict[str, Any], limits: Limits, model: ModelDescription | None) -> None:
    """Narrows the schemas of bodies to what this server takes.

    Args:
        schemas: Of all objects, by name; they are changed.
        limits: What one request may ask for.
        model: What the schedulers describe; None if it is unknown yet.
    """
    for name, schema in schemas.items():
        _make_exact(schema)
        properties = schema.get("properties", {})
        for count in ("n", "best_of"):
            if count in properties and name.endswith("Body"):
                _set(properties[count], "integer", maximum=limits.max_n)
        if name == "CompletionBody":
            for one in properties["prompt"]["anyOf"]:
                if "items" in one and "anyOf" in one["items"]:
                    one["maxItems"] = min(one["maxItems"], limits.max_prompts)
        if model is not None:
            _set_model(schema, properties, model)


def _set_model(schema: dict[str, Any], properties: dict[str, Any], model: ModelDescription) -> None:
    _set_tokens(schema, model.vocab_size)
    if model.is_fcfs and "priority" in properties:
        _set(properties["priority"], "integer", minimum=0, maximum=0)
    if model.max_draft_tokens is not None and "num_speculative_tokens" in properties:
        _set(properties["num_speculative_tokens"], "integer", maximum=model.max_draft_tokens)
    for length in _LENGTHS:
        if length in properties:
            # A prompt has a token at least.
            _set(properties[length], "integer", maximum=model.max_model_len - 1)


def _set(field: dict[str, Any], kind: str, **limits: int) -> None:
    """Sets keywords of a field where it is of a type, not where it is null."""
    for one in field.get("anyOf", [field]):
        if one.get("type") == kind:
            one.update(limits)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yields a JSON object and all that are in it, or those in a list."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _objects(one)


def _make_exact(schema: Any) -> None:
    """Writes limits of integers as such; FastAPI has floats, which are inexact from 2**53 on."""
    for one in _objects(schema):
        for keyword in _BOUNDS & one.keys():
            if one.get("type") == "integer":
                one[keyword] = int(one[keyword])


def _set_tokens(schema: Any, vocab_size: int) -> None:
    """Says wherever there is a token which tokens there are."""
    for one in _objects(schema):
        if one.get("format") == ID_FORMAT:
            if one.get("type") == "integer":
                one["maximum"] = vocab_size - 1
            else:
                one["pattern"] = f"^({numbers_below(vocab_size)})$"


def numbers_below(end: int) -> str:
    """Returns a regular expression of the decimal numbers from 0 to `end` - 1."""
    last = str(end - 1)
    forms = ["0", *(f"[1-9][0-9]{{{length}}}" for length in range(len(last) - 1))]
    for index, digit in enumerate(last):
        lowest = 1 if index == 0 else 0
        if int(digit) > lowest:
            rest = len(last) - index - 1
            forms.append(f"{last[:index]}[{lowest}-{int(digit) - 1}][0-9]{{{rest}}}")
    return "|".join([*forms, last])
