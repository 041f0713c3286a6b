from typing import Any

from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.serving import BaseServing


class OpenAIServingCompletion(BaseServing):
    async def create_completion(self, request: CompletionRequest, raw_request: Any = None) -> Any:
        return await self._answer(request)
