"""What of the OpenAPI document depends on the server: its model and its limits."""

from typing import Any

from optimist_gateway.core.model_description import ModelDescription
from optimist_gateway.generation.limits import Limits

ID_FORMAT = "token-id"
"""Format of numbers that are tokens of the model."""
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


def _make_exact(value: Any) -> None:
    """Writes limits of integers as such; FastAPI has floats, which are inexact from 2**53 on."""
    if isinstance(value, list):
        for one in value:
            _make_exact(one)
    elif isinstance(value, dict):
        for keyword in _BOUNDS & value.keys():
            if value.get("type") == "integer":
                value[keyword] = int(value[keyword])
        for one in value.values():
            _make_exact(one)


def _set_tokens(value: Any, vocab_size: int) -> None:
    """Says wherever a token stands which tokens there are."""
    if isinstance(value, list):
        for one in value:
            _set_tokens(one, vocab_size)
    elif isinstance(value, dict):
        if value.get("format") == ID_FORMAT:
            if value.get("type") == "integer":
                value["maximum"] = vocab_size - 1
            else:
                value["pattern"] = f"^({numbers_below(vocab_size)})$"
        for one in value.values():
            _set_tokens(one, vocab_size)


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
