"""What the OpenAPI document says beyond the bodies: answers, errors, headers."""

from typing import Any

from fastapi import FastAPI

_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_REASONS = {
    "400": "The request is wrong; `param` names the field.",
    "401": "There is no key, or a wrong one.",
    "403": "The key does not allow this.",
    "404": "There is no such model.",
    "405": "The path does not take this method.",
    "408": "The body came too slowly.",
    "413": "The body is too long.",
    "415": "The body is not JSON.",
    "429": "There are too many requests.",
    "431": "The headers are too long.",
    "500": "The server failed.",
    "503": "The scheduler is not reached, overloaded, or the server is about to end.",
}
_WITH_RETRY = ("429", "503")
_STREAMED = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})


def add_document(app: FastAPI, model_name: str) -> None:
    """Makes `/openapi.json` say how the endpoints answer.

    Args:
        app: The application with all its endpoints.
        model_name: The only model that requests may name.
    """
    generate = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            _describe(schema, model_name)
            app.openapi_schema = schema
        return app.openapi_schema

    # FastAPI's own way to change the document.
    app.openapi = document  # type: ignore[method-assign]


def _describe(schema: dict[str, Any], model_name: str) -> None:
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Error"] = _ERROR
    for body in schemas.values():
        model = body.get("properties", {}).get("model")
        if model is not None and model.get("type") == "string":
            model["enum"], model["examples"] = [model_name], [model_name]
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            responses = operation["responses"]
            responses.pop("422", None)
            for status, reason in _REASONS.items():
                responses.setdefault(status, _error(status, reason))
            if path in _STREAMED:
                responses["200"]["description"] = "The answer, or its events if `stream` is true."
                responses["200"]["content"] = {
                    "application/json": {"schema": {"type": "object"}},
                    "text/event-stream": {"schema": {"type": "string"}},
                }


def _error(status: str, reason: str) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": reason,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if status in _WITH_RETRY:
        text = {"description": "Seconds to wait.", "schema": {"type": "string"}}
        answer["headers"] = {"Retry-After": text}
    if status == "405":
        text = {"description": "The methods that are allowed.", "schema": {"type": "string"}}
        answer["headers"] = {"Allow": text | {"required": True}}
    return answer
