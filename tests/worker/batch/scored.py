"""What a runner reports of how likely tokens were, and what the model itself says, for tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import RowLogprobs, StepResult
from optimist_worker.runner.runner import Runner
from tests.worker.step import generate, rows_of

TokenScores = tuple[float, list[int], list[float]]
"""The token's log-probability, the likeliest tokens, theirs."""
CLOSE = 1e-4


@dataclass
class Scored:
    """One request: its tokens, and what was reported of them."""

    prompt: list[int]
    output: list[int] = field(default_factory=list)
    of_prompt: dict[int, TokenScores] = field(default_factory=dict)
    """By position."""
    of_output: list[TokenScores] = field(default_factory=list)
    num_accepted: int = 0

    def add(self, row: RowLogprobs, num_emitted: int) -> None:
        """Takes what a step reports."""
        rows = scores_of(row)
        for offset in range(row.num_prompt_tokens):
            position = row.first_prompt_position + offset
            assert position not in self.of_prompt
            self.of_prompt[position] = rows[offset]
        of_output = rows[row.num_prompt_tokens :]
        assert len(of_output) in (0, num_emitted)
        self.of_output += of_output


def scores_of(row: RowLogprobs) -> list[TokenScores]:
    """Returns what a row has scored, token by token."""
    num_prompt = row.num_prompt_tokens
    number = len(row.logprobs)
    widths = [row.num_prompt_candidates] * num_prompt
    widths += [row.num_candidates] * (number - num_prompt)
    assert len(row.candidate_token_ids) == len(row.candidate_logprobs) == sum(widths)
    indices: list[TokenScores] = []
    first = 0
    for logprob, width in zip(row.logprobs.tolist(), widths, strict=True):
        part = slice(first, first + width)
        ids = row.candidate_token_ids[part].tolist()
        indices.append((logprob, ids, row.candidate_logprobs[part].tolist()))
        first += width
    return indices


def take(scored: Scored, result: StepResult) -> None:
    """Takes the result of a step of a single row."""
    (row,) = rows_of(result)
    assert row.error is None, row.error
    scored.output += row.token_ids
    scored.num_accepted += row.num_accepted_tokens
    for one in result.logprobs:
        scored.add(one, len(row.token_ids))


def generate_scored(
    runner: Runner, prompt: Sequence[int], num_tokens: int, sampling: SamplingParams, **options: Any
) -> Scored:
    """Generates as `generate` does."""
    scored = Scored(list(prompt))
    note = partial(take, scored)
    generate(runner, prompt, num_tokens, sampling=sampling, note=note, **options)
    return scored


@lru_cache(maxsize=4)
def reference(path: Path, dtype: torch.dtype) -> Callable[[tuple[int, ...]], torch.Tensor]:
    """Returns transformers' own log-probabilities of a sequence, float32 `[num_tokens, vocab]`."""
    auto_model: Any = AutoModelForCausalLM
    module = auto_model.from_pretrained(str(path), dtype=dtype).eval()

    @torch.inference_mode()
    def logprobs(token_ids: tuple[int, ...]) -> torch.Tensor:
        logits: torch.Tensor = module(torch.tensor([token_ids]), use_cache=False).logits[0]
        return logits.float().log_softmax(-1)

    return logprobs


def check_scores(
    expected: torch.Tensor, tokens: Sequence[int], indices: Sequence[TokenScores], width: int
) -> None:
    """Compares what was scored of tokens with the distributions in their places."""
    assert len(indices) == len(tokens)
    for row, token, (logprob, ids, logprobs) in zip(expected, tokens, indices, strict=True):
        np.testing.assert_allclose(row[token].numpy(), logprob, atol=CLOSE)
        assert len(ids) == len(set(ids)) == width
        assert logprobs == sorted(logprobs, reverse=True)
        np.testing.assert_allclose(row[ids].numpy(), logprobs, atol=CLOSE)
        best = row.topk(width).values
        np.testing.assert_allclose(best.numpy(), logprobs, atol=CLOSE)


def check_scored(scored: Scored, path: Path, dtype: torch.dtype, sampling: SamplingParams) -> None:
    """Compares all that was scored of a request with what the model says."""
    sequence = tuple(scored.prompt + scored.output)
    expected = reference(path, dtype)(sequence)
    number = len(scored.prompt)
    if sampling.num_logprobs is None:
        assert scored.of_output == []
    else:
        width = sampling.num_logprobs
        check_scores(expected[number - 1 : -1], scored.output, scored.of_output, width)
    if sampling.num_prompt_logprobs is None:
        assert scored.of_prompt == {}
    else:
        assert list(scored.of_prompt) == list(range(1, number))
        width = sampling.num_prompt_logprobs
        indices = list(scored.of_prompt.values())
        check_scores(expected[: number - 1], scored.prompt[1:], indices, width)
