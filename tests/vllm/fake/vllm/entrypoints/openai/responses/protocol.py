from typing import Any

from vllm.entrypoints.serve.engine.protocol import OpenAIBaseModel
from vllm.sampling_params import SamplingParams


class ResponsesRequest(OpenAIBaseModel):
    prompt: str
    max_tokens: int = 1000
    n: int = 1
    stream: bool = False
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None

    def to_sampling_params(
        self, default_max_tokens: int, default_sampling_params: dict[str, Any] | None = None
    ) -> SamplingParams:
        return SamplingParams(default_max_tokens, self.n, dict(self.vllm_xargs or {}))
