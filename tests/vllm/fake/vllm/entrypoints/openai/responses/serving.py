from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.engine.serving import BaseServing


class OpenAIServingResponses(BaseServing):
    async def create_responses(self, request: ResponsesRequest, raw_request: Any = None) -> Any:
        """Answers with a usage and with chunks of another kind than the other endpoints."""
        answer = await self._answer(request)
        if isinstance(answer, AsyncIterator):
            return (SimpleNamespace(text=chunk) async for chunk in answer)
        answer.usage = SimpleNamespace(output_tokens=answer.usage.completion_tokens)
        return answer
