"""GET /v1/models, POST /tokenize, /detokenize; the names of these are vLLM's."""

import time
from contextlib import suppress
from typing import Annotated, Any, Self

import orjson
from fastapi import APIRouter
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from optimist_gateway.api.openai.bodies.base import Body, TokenId, invalid
from optimist_gateway.api.openai.bodies.conversation import ConversationFields, Messages
from optimist_gateway.api.openai.body_route import body_route
from optimist_gateway.core.error import FieldError, naming
from optimist_gateway.generation.generation import ServedModel, Service
from optimist_gateway.schedulers.requests import SchedulerUnavailableError
from optimist_gateway.security.beside import beside
from optimist_gateway.text.encode import render_chat, require_tokenizable

MAX_TOKENS = 2**19


class TokenizeBody(ConversationFields):
    """A text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    """Whether to add the tokens that a prompt begins with; null is true for `prompt`, and false for
    `messages`, whose chat template has them."""
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _has_one_text(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise invalid("prompt", "prompt: either prompt or messages must be set, and not both")
        if self.messages is not None:
            self.continues(self.messages[-1])
        return self


class DetokenizeBody(Body):
    """Tokens."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_TOKENS)]


def model_router(service: Service) -> APIRouter:
    """Returns the endpoints."""
    router = APIRouter()
    created = int(time.time())

    def describe(model: ServedModel) -> dict[str, Any]:
        data: dict[str, Any] = {
            "id": model.name,
            "object": "model",
            "created": created,
            "owned_by": "optimist",
            "max_model_len": None,
        }
        with suppress(SchedulerUnavailableError):
            # The name of the field is vLLM's.
            data["max_model_len"] = model.schedulers.description.max_model_len
        return data

    @router.get("/v1/models")
    async def models() -> Response:
        """Lists the models."""
        data = [describe(model) for model in service.models.values()]
        return JSONResponse({"object": "list", "data": data})

    # A name may have slashes, as hub names do.
    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        """Describes a model."""
        return JSONResponse(describe(service.find_model(name)))

    return router


def tokenization_router(service: Service) -> APIRouter:
    """Returns the endpoints."""
    router = APIRouter(route_class=body_route(service, admits=False))

    @router.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> Response:
        """Returns the tokens of a text, or of the prompt that a conversation makes."""
        model, text, asked = service.find_model(body.model), body.prompt, body.add_special_tokens
        adds_special = text is not None if asked is None else asked
        tokenizer, description = model.tokenizer, model.schedulers.description
        if text is not None:
            require_tokenizable(len(text), ("prompt",), tokenizer, description)
        else:
            with naming(lambda: {("prompts",): "messages"}):
                conversation = body.conversation(body.messages or ())
                text = await render_chat(conversation, tokenizer, description)
        encoding = await tokenizer.encode(text, add_special_tokens=adds_special, most=MAX_TOKENS)
        token_ids = encoding.token_ids
        if encoding.num_tokens > MAX_TOKENS:
            fault = f"has more than {MAX_TOKENS} tokens, the most that are returned"
            raise FieldError(("prompt" if body.prompt is not None else "messages",), fault)

        def write() -> bytes:
            strings = None
            if body.return_token_strs:
                strings = [tokenizer.vocabulary[token][0] for token in token_ids]
            answer = {
                "count": len(token_ids),
                "max_model_len": description.max_model_len,
                "tokens": token_ids,
                "token_strs": strings,
            }
            return orjson.dumps(answer)

        return Response(await beside(write, len(token_ids)), media_type="application/json")

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> Response:
        """Returns the text of tokens, special ones included."""
        model = service.find_model(body.model)
        model.schedulers.description.require_known(body.tokens, ("tokens",))
        return JSONResponse({"prompt": await model.tokenizer.decode(body.tokens)})

    return router
