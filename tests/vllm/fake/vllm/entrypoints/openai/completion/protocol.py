from typing import Any

from vllm.entrypoints.serve.engine.protocol import GenerationRequest
from vllm.sampling_params import SamplingParams


class CompletionRequest(GenerationRequest):
    def to_sampling_params(
        self, max_tokens: int, default_sampling_params: dict[str, Any]
    ) -> SamplingParams:
        return SamplingParams(max_tokens, self.n, dict(self.vllm_xargs or {}))
