import json
import logging
from collections.abc import AsyncIterator
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

from vllm.entrypoints.serve.engine.protocol import Answer, ErrorResponse, UsageInfo
from vllm.tokenizers import cached_tokenizer_from_config

logger = logging.getLogger("vllm.fake")


class BaseServing:
    """Answers by an engine, a function of the request's id, prompt and parameters."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.renderer = SimpleNamespace(tokenizer=cached_tokenizer_from_config(None))

    @staticmethod
    def create_error_response(
        message: str | Exception,
        err_type: str = "BadRequestError",
        status_code: HTTPStatus = HTTPStatus.BAD_REQUEST,
        param: str | None = None,
    ) -> ErrorResponse:
        return ErrorResponse(message=str(message), param=param)

    async def _answer(self, request: Any) -> Any:
        params = request.to_sampling_params(request.max_tokens, {})
        logger.info("Received request: params: %s", params)
        texts = self.engine(request.prompt, params)
        usage = UsageInfo(completion_tokens=sum(map(len, texts)))
        if request.stream:
            return self._stream(texts, usage)
        return Answer(id="1", texts=texts, usage=usage)

    async def _stream(self, texts: list[str], usage: UsageInfo) -> AsyncIterator[str]:
        for index, text in enumerate(texts):
            choice = {"index": index, "text": text}
            yield f"data: {json.dumps({'choices': [choice]}, separators=(',', ':'))}\n\n"
        body = {"choices": [], "usage": usage.model_dump(exclude_none=True)}
        yield f"data: {json.dumps(body, separators=(',', ':'))}\n\n"
        yield "data: [DONE]\n\n"
