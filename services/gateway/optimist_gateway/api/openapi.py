"""What the OpenAPI document says beyond bodies and answers: examples, and names of models."""

import json
from importlib import resources
from typing import Any

from fastapi import FastAPI

from optimist_gateway.core.request import Limits
from optimist_gateway.generation.generation import Service

EXAMPLES: dict[str, dict[str, dict[str, Any]]] = json.loads(
    resources.files(__package__).joinpath("openapi_examples.json").read_text("utf-8")
)
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
