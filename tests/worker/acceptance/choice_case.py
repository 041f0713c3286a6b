"""Rows of logits with sampling parameters, for what chooses their tokens."""

from typing import Any

import torch

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.choice import choose
from optimist_worker.core.acceptance.sampling_table import SamplingTable
from optimist_worker.core.operation import Function

SAMPLING: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.01},
    {"temperature": 8.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 5.0, "top_p": 0.9995},
    {"temperature": 0.7, "top_p": 1e-4},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 2.0, "top_k": 40, "top_p": 0.7},
    {"temperature": 1.5, "min_p": 0.2},
    {"temperature": 1.5, "min_p": 0.01, "top_k": 100, "top_p": 0.95},
]


def assert_as_plain(
    run: Function, vocab_size: int, dtype: torch.dtype, num_rows: int, sampling: dict[str, Any]
) -> None:
    """Chooses for rows of which one is greedy, one has few tokens, one many equal ones."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = (3 * torch.randn(num_rows, vocab_size, generator=generator)).to(dtype)
    logits[1, : vocab_size // 2] = float("-inf")
    logits[2] = logits[2].round()
    table = SamplingTable(num_rows, vocab_size, logits.device)
    for slot in range(num_rows):
        seed = slot * (2**33 + 7) - 5
        table.set(slot, SamplingParams(seed=seed, **(sampling if slot else {"temperature": 0.0})))
    slots = torch.arange(num_rows)
    arguments = logits, 2**20 * slots + slots, slots, table, table.needs(slots.tolist())
    assert torch.equal(run(*arguments), choose(*arguments))
