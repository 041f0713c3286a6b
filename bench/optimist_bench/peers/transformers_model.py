"""The model as transformers loads it, for the peers that are ways to generate with it."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from optimist_bench.peers.engine import Setup


def load_model(setup: Setup, directory: str = "") -> Any:
    """Returns the model of the setup, or of another directory, in float32 for inference."""
    torch.set_num_threads(setup.num_threads)
    return load_weights(directory or setup.model, "float32")


def load_weights(directory: str, dtype: str) -> Any:
    """Returns a model for inference, on the CPU.

    Args:
        directory: Of the model.
        dtype: Name of a type of PyTorch, such as bfloat16.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    return model.eval().requires_grad_(False)


def pad_left(prompts: list[list[int]], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids and attention mask [num_prompts, longest] of prompts that end together."""
    longest = max(map(len, prompts))
    token_ids = torch.full((len(prompts), longest), pad_token_id)
    mask = torch.zeros((len(prompts), longest), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        token_ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return token_ids, mask
