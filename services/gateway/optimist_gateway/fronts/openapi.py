"""What the OpenAPI document says beyond bodies and answers: examples, links, limits."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from fastapi import FastAPI

from optimist_gateway.core.request import Limits
from optimist_gateway.core.schedulers import ModelDescription, widest_description
from optimist_gateway.fronts.openai.bodies.base import ID_FORMAT
from optimist_gateway.generation.generation import Service
from optimist_gateway.schedulers.requests import SchedulerUnavailableError

_CODE = "def area(radius):\n    return 3.14 * radius**2\n"
_MESSAGES = [{"role": "user", "content": "Rename radius to r."}]
_SCHEMA = {
    "type": "object",
    "properties": {"r": {"type": "number"}},
    "required": ["r"],
    "additionalProperties": False,
}

_FORM = {"name": "circle", "schema": _SCHEMA, "strict": True}
_TOOL = {"type": "function", "function": {"name": "draw_circle", "parameters": _SCHEMA}}
_PREDICTION = {"prediction": {"type": "content", "content": _CODE}}
_CHAT = {"messages": _MESSAGES, "max_completion_tokens": 64}
_COMPLETION = {"prompt": _CODE, "max_tokens": 64}
_RESPONSE = {"input": "Rename radius to r.", "max_output_tokens": 64}
_ITEM = {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}

EXAMPLES: dict[str, dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": {
        "prediction": _CHAT | _PREDICTION,
        "stream": _CHAT | {"stream": True, "stream_options": {"include_usage": True}},
        "structure": _CHAT | {"response_format": {"type": "json_schema", "json_schema": _FORM}},
        "tools": _CHAT | {"tools": [_TOOL], "tool_choice": "auto"},
    },
    "/v1/completions": {
        "prediction": _COMPLETION | _PREDICTION | {"include_speculation": True},
        "logprobs": {"prompt": ["def f(", "class A"], "max_tokens": 8, "logprobs": 2},
    },
    "/v1/responses": {
        "prediction": _RESPONSE | _PREDICTION | {"instructions": "Answer with code."},
        "items": _RESPONSE | {"input": [_ITEM], "stream": True},
    },
    "/tokenize": {
        "text": {"prompt": _CODE, "return_token_strs": True},
        "chat": {"messages": _MESSAGES},
    },
    "/detokenize": {"tokens": {"tokens": [0, 1, 2]}},
}
"""For each path requests by name."""


def add_document(app: FastAPI, service: Service) -> None:
    """Makes `/openapi.json` say how the endpoints answer, and what this server takes.

    What only schedulers know, the vocabulary and the longest sequence, is in it once those of all
    models have been reached: what at least one of the models takes.
    """
    generate = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema, known = generate(), []
        with suppress(SchedulerUnavailableError):
            known = [pool.description for pool in service.pools]
        _describe(schema, list(service.models))
        widest = widest_description(known)
        set_limits(schema["components"]["schemas"], service.limits, widest)
        app.openapi_schema = schema if known else None
        return schema

    # FastAPI's own way to change the document.
    app.openapi = document  # type: ignore[method-assign]


def _describe(schema: dict[str, Any], models: list[str]) -> None:
    schemas = schema["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    _name_models(schemas, models)
    for one in schemas.values():
        if "properties" in one:
            # An answer has no other fields either.
            one["additionalProperties"] = False
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            _add_examples(path, operation, models)
    _link(schema["paths"])


def _name_models(schemas: dict[str, Any], models: list[str]) -> None:
    """Says which models there are."""
    for body in schemas.values():
        for form in body.get("anyOf", [body]):
            model = form.get("properties", {}).get("model")
            for one in (model or {}).get("anyOf", [model]):
                if one is not None and one.get("type") == "string":
                    one["enum"] = models


def _add_examples(path: str, operation: dict[str, Any], models: list[str]) -> None:
    for parameter in operation.get("parameters", ()):
        # All of them are names of models.
        parameter["schema"] = {"type": "string", "enum": models}
        parameter["example"] = models[0]
    if path in EXAMPLES:
        content = operation["requestBody"]["content"]["application/json"]
        content["examples"] = {
            name: {"value": example | {"model": models[0]}}
            for name, example in EXAMPLES[path].items()
        }


def _link(paths: dict[str, Any]) -> None:
    """Says which answers are of use for which requests."""
    one_model, text = paths["/v1/models/{name}"]["get"], paths["/detokenize"]["post"]
    named = {"parameters": {"name": "$response.body#/data/0/id"}}
    tokens = {"requestBody": {"tokens": "$response.body#/tokens"}}
    listed, tokenized = paths["/v1/models"]["get"], paths["/tokenize"]["post"]
    listed["responses"]["200"]["links"] = {
        "model": {"operationId": one_model["operationId"], **named}
    }
    tokenized["responses"]["200"]["links"] = {
        "text": {"operationId": text["operationId"], **tokens}
    }


_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")


def set_limits(schemas: dict[str, Any], limits: Limits, model: ModelDescription | None) -> None:
    """Narrows the schemas of bodies to what this server takes, as far as that is known."""
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
