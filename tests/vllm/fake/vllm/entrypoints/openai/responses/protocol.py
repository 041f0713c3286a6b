from typing import Any

from vllm.entrypoints.serve.engine.protocol import GenerationRequest
from vllm.sampling_params import SamplingParams


class ResponsesRequest(GenerationRequest):
    def to_sampling_params(
        self, default_max_tokens: int, default_sampling_params: dict[str, Any] | None = None
    ) -> SamplingParams:
        return SamplingParams(default_max_tokens, self.n, dict(self.vllm_xargs or {}))
