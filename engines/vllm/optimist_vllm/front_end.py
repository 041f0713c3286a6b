"""vLLM's endpoints: `prediction` on the way in, what it was worth on the way out."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from copy import deepcopy
from functools import cache, wraps
from typing import Any

from optimist_vllm import accounts
from optimist_vllm.accounts import RequestAccount
from optimist_vllm.core.payload import PAYLOAD, TEXT, Payload
from optimist_vllm.core.prediction import check_num_tokens, read_prediction

_payload: ContextVar[Payload | None] = ContextVar("payload", default=None)
"""Of the request that is being answered."""


@cache
def install() -> None:
    """Wraps the endpoints that have a prediction, once, and what takes reports off outputs."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses

    accounts.install()
    encoder = _Encoder()
    for owner, name, wrap in (
        (ChatCompletionRequest, "to_sampling_params", _attach),
        (CompletionRequest, "to_sampling_params", _attach),
        (ResponsesRequest, "to_sampling_params", _attach),
        (OpenAIServingChat, "create_chat_completion", encoder.answer),
        (OpenAIServingCompletion, "create_completion", encoder.answer),
        (OpenAIServingResponses, "create_responses", encoder.answer),
    ):
        setattr(owner, name, wrap(getattr(owner, name)))


def _attach(convert: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(convert)
    def to_sampling_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = convert(self, *args, **kwargs)
        payload = _payload.get()
        if payload is not None:
            params.extra_args = {**(params.extra_args or {}), PAYLOAD: payload}
        return params

    return to_sampling_params


class _Encoder:
    """Tokenizes predictions on a thread of its own, with a tokenizer of its own."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "optimist-tokenize")
        self._tokenizer: Any = None

    def answer(self, create: Callable[..., Any]) -> Callable[..., Any]:
        """Returns an endpoint's method that reads predictions and says what they were worth."""

        @wraps(create)
        async def create_with_prediction(
            serving: Any, request: Any, *args: Any, **kwargs: Any
        ) -> Any:
            field = _take_field(request)
            if field is None:
                return await create(serving, request, *args, **kwargs)
            account = RequestAccount()
            try:
                texts = read_prediction(field)
                loop = asyncio.get_running_loop()
                predictions = await loop.run_in_executor(
                    self._executor, self._encode, serving.renderer.tokenizer, texts
                )
            except ValueError as error:
                return serving.create_error_response(str(error), param=TEXT)
            token = _payload.set(Payload.of(account.key, predictions))
            try:
                result = await create(serving, request, *args, **kwargs)
            finally:
                _payload.reset(token)
            if isinstance(result, AsyncIterator):
                return _add_to_stream(result, account)
            account.close()
            usage = getattr(result, "usage", None)
            # That of /v1/responses has no such field.
            if hasattr(usage, "completion_tokens_details"):
                _add_to_usage(usage, account)
            return result

        return create_with_prediction

    def _encode(self, tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
        if self._tokenizer is None:
            # A tokenizer may not be used by two threads at once.
            self._tokenizer = deepcopy(tokenizer)
        predictions = [self._tokenizer.encode(each, add_special_tokens=False) for each in texts]
        check_num_tokens(predictions)
        return predictions


def _take_field(request: Any) -> object:
    """Returns the prediction as the client gave it, and takes it out of what vLLM may log."""
    field = (request.model_extra or {}).pop(TEXT, None)
    in_xargs = (request.vllm_xargs or {}).pop(TEXT, None)
    return in_xargs if field is None else field


def _add_to_usage(usage: Any, account: RequestAccount) -> None:
    from vllm.entrypoints.serve.engine.protocol import CompletionTokenUsageInfo

    details = usage.completion_tokens_details
    known = details.model_dump() if details is not None else {}
    usage.completion_tokens_details = CompletionTokenUsageInfo(**known, **account.details)


async def _add_to_stream(chunks: AsyncIterator[Any], account: RequestAccount) -> AsyncIterator[Any]:
    try:
        async for chunk in chunks:
            # The last chunk alone has no choices and a usage. Quotes in a text have a backslash.
            # Chunks of /v1/responses are objects.
            if isinstance(chunk, str) and '"choices":[]' in chunk and '"usage":{' in chunk:
                body = json.loads(chunk.removeprefix("data: "))
                details = body["usage"].get("completion_tokens_details") or {}
                body["usage"]["completion_tokens_details"] = {**details, **account.details}
                chunk = f"data: {json.dumps(body)}\n\n"
            yield chunk
    finally:
        account.close()
