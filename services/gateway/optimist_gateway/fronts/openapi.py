"""What the OpenAPI document says beyond bodies and answers: examples, and names of models."""

from typing import Any

from fastapi import FastAPI

from optimist_gateway.core.request import Limits
from optimist_gateway.generation.generation import Service

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
    """Makes `/openapi.json` say which models there are, with examples of requests."""
    generate = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            _describe(generate(), list(service.models), service.limits)
        return generate()

    # FastAPI's own way to change the document.
    app.openapi = document  # type: ignore[method-assign]


def _describe(document: dict[str, Any], models: list[str], limits: Limits) -> None:
    """Completes what FastAPI says; bodies are checked by us, so that it knows no errors."""
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for body in schemas.values():
        for field, known in (("model", {"enum": models}), ("n", {"maximum": limits.max_n})):
            of_field = body.get("properties", {}).get(field, {})
            for form in of_field.get("anyOf", [of_field]):
                if form.get("type") in ("string", "integer"):
                    form.update(known)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            for parameter in operation.get("parameters", ()):
                # All of them are names of models.
                parameter["schema"] = {"type": "string", "enum": models}
            if path in EXAMPLES:
                operation["requestBody"]["content"]["application/json"]["examples"] = {
                    name: {"value": example | {"model": models[0]}}
                    for name, example in EXAMPLES[path].items()
                }
