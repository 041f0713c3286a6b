from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.serving import BaseServing


class OpenAIServingChat(BaseServing):
    async def create_chat_completion(
        self, request: ChatCompletionRequest, raw_request: Any = None
    ) -> Any:
        return await self._answer(request)
