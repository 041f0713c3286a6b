from typing import Any

import torch


class Sampler:
    def forward(
        self,
        logits: torch.Tensor,
        sampling_metadata: Any,
        predict_bonus_token: bool = False,
        logprobs_mode_override: str | None = None,
    ) -> Any: ...
