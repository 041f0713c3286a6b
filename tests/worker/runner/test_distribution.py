"""What is emitted has the target's distribution, whatever was drafted.

Thousands of requests that differ in their seeds alone generate texts of two or three tokens in as
many steps as it takes. Their frequencies are compared with the exact distribution of whole texts,
and so of every token given those before it. A right rule is beyond 5 standard deviations in three
of ten million draws of seeds; the seeds are fixed. Where what is wrong must show, it is beyond 8.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.rules import verify_coupled, verify_rejection
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.drafts import Drafts
from tests.worker.drafters.markov import (
    Drafter,
    Judge,
    Rows,
    draft,
    generate,
    nothing_drafted,
    random_logits,
    surprise,
    text_distribution,
)

MOST, LEAST_IF_WRONG = 5.0, 8.0
NUM_ROWS = 5000
"""For what is only a little wrong."""
VOCAB_SIZE = 6
TARGET = random_logits(VOCAB_SIZE, 1)
DRAFTERS = {
    "right": TARGET,
    "near": TARGET + random_logits(VOCAB_SIZE, 2, 0.5),
    "unrelated": random_logits(VOCAB_SIZE, 3),
}
CHAIN = (-1, 0, 1)
TREE = (-1, -1, 0, 0, 1, -1, 2)
"""Three tokens after the last known one, two and one after these, and one more level."""

PARAMS = {
    "temperature": SamplingParams(temperature=1.3),
    "top_k": SamplingParams(temperature=0.9, top_k=3),
    "top_p": SamplingParams(temperature=1.2, top_p=0.8),
    "min_p": SamplingParams(temperature=1.1, min_p=0.15),
    "repetition": SamplingParams(temperature=1.0, repetition_penalty=1.6),
    "counts": SamplingParams(temperature=1.0, presence_penalty=0.7, frequency_penalty=0.9),
    "bias": SamplingParams(temperature=1.0, logit_bias={0: 1.5, 3: -math.inf, 5: -0.5}),
    "combined": SamplingParams(
        temperature=0.8,
        top_k=4,
        top_p=0.95,
        min_p=0.02,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.5,
        logit_bias={1: 0.8},
    ),
}


@functools.cache
def expected(name: str, num_tokens: int) -> Tensor:
    return text_distribution(TARGET, PARAMS[name], num_tokens)


def drafter(
    shape: Sequence[int], quality: str = "near", rule: AcceptanceRule | None = None
) -> Drafter:
    return lambda rows: draft(rows, shape, DRAFTERS[quality], rule)


def surprise_of(
    name: str, drafts: Drafter, judge: Judge, num_tokens: int = 2, num_rows: int = NUM_ROWS
) -> float:
    """How far texts generated with these drafts and this rule are off their distribution."""
    rows = Rows(TARGET, PARAMS[name], num_rows)
    return surprise(generate(rows, drafts, judge, num_tokens), expected(name, num_tokens))


@pytest.mark.parametrize(
    ("judge", "rule"),
    [
        (verify_rejection, None),
        (verify_rejection, AcceptanceRule.REJECTION),
        (verify_coupled, AcceptanceRule.COUPLED),
    ],
)
@pytest.mark.parametrize(
    ("name", "shape"), [*((name, TREE) for name in PARAMS), ("combined", CHAIN)]
)
def test_texts_are_sampled_from_the_target(
    name: str, shape: tuple[int, ...], judge: Judge, rule: AcceptanceRule | None
) -> None:
    assert surprise_of(name, drafter(shape, "near", rule), judge) < MOST


@pytest.mark.parametrize("judge", [verify_coupled, verify_rejection])
@pytest.mark.parametrize("quality", ["right", "unrelated", "none"])
@pytest.mark.parametrize("rule", [None, AcceptanceRule.COUPLED, AcceptanceRule.REJECTION])
def test_the_quality_of_drafts_does_not_matter(
    rule: AcceptanceRule | None, quality: str, judge: Judge
) -> None:
    drafts = nothing_drafted if quality == "none" else drafter(TREE, quality, rule)
    assert surprise_of("combined", drafts, judge, 3) < MOST


def test_as_certain_drafts_any_may_be_chosen() -> None:
    def drafts(rows: Rows) -> Drafts:
        """Drafts of which only those are verified that came out likely."""
        drawn = draft(rows, (-1,), DRAFTERS["unrelated"], AcceptanceRule.REJECTION)
        assert drawn.probabilities is not None
        probability = drawn.probabilities.gather(2, drawn.token_ids[:, :, None])[:, 0, 0]
        is_certain = torch.ones(len(rows.slots), dtype=torch.bool)
        return replace(drawn, num_tokens=(probability > 0.3).long(), is_certain=is_certain)

    assert surprise_of("temperature", drafts, verify_rejection) < MOST


def test_rows_with_certain_and_with_drawn_drafts_share_a_pass() -> None:
    def drafts(rows: Rows) -> Drafts:
        drawn = draft(rows, TREE, DRAFTERS["near"], AcceptanceRule.REJECTION)
        certain = draft(rows, TREE, DRAFTERS["near"], None)
        is_certain = rows.slots % 2 == 0
        token_ids = torch.where(is_certain[:, None], certain.token_ids, drawn.token_ids)
        return replace(drawn, token_ids=token_ids, is_certain=is_certain)

    assert surprise_of("combined", drafts, verify_rejection) < MOST
    wrong = lambda rows: replace(drafts(rows), is_certain=None)  # noqa: E731
    assert surprise_of("combined", wrong, verify_rejection) > LEAST_IF_WRONG
