"""POST /tokenize and /detokenize, GET /tokenizer_info."""

from typing import Any

from fastapi import APIRouter

from optimist_gateway.core.error import naming, scheduler_unavailable
from optimist_gateway.core.model_description import ModelDescription
from optimist_gateway.fronts.openai.bodies.tokenization import DetokenizeBody, TokenizeBody
from optimist_gateway.generation.generation import Service
from optimist_gateway.schedulers.request_stream import SchedulerUnavailableError
from optimist_gateway.text.prompt import render_chat, require_tokenizable


def tokenization_router(service: Service, *, show_chat_template: bool) -> APIRouter:
    """Returns the endpoints.

    Args:
        service: What all requests share.
        show_chat_template: Whether clients may see the model's chat template.
    """
    router = APIRouter()

    def model(name: str | None) -> ModelDescription:
        if name is not None:
            service.require_model(name)
        try:
            return service.schedulers.description
        except SchedulerUnavailableError as error:
            raise scheduler_unavailable(str(error)) from None

    @router.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        """Returns the tokens of a text, or of the prompt that a conversation makes."""
        described = model(body.model)
        if body.prompt is not None:
            with naming(dict):
                require_tokenizable(len(body.prompt), ("prompt",), service.tokenizer, described)
            token_ids = await service.tokenizer.encode(
                body.prompt, add_special_tokens=body.add_special_tokens is not False
            )
        else:
            messages = [message.message() for message in body.messages or ()]
            with naming(lambda: {("prompts",): "messages"}):
                text = await render_chat(
                    messages,
                    service.tokenizer,
                    described,
                    add_generation_prompt=body.add_generation_prompt is not False,
                )
            token_ids = await service.tokenizer.encode(
                text, add_special_tokens=bool(body.add_special_tokens)
            )
        strings = None
        if body.return_token_strs:
            strings = [service.tokenizer.vocabulary.describe(token)[0] for token in token_ids]
        return {
            "count": len(token_ids),
            "max_model_len": described.max_model_len,
            "tokens": token_ids,
            "token_strs": strings,
        }

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        """Returns the text of tokens, special ones included."""
        described = model(body.model)
        with naming(dict):
            described.require_known(body.tokens, ("tokens",))
        return {"prompt": await service.tokenizer.decode(body.tokens)}

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        """Describes the tokenizer: its class and special tokens."""
        info = service.tokenizer.info()
        if not show_chat_template:
            del info["chat_template"]
        return info

    return router
