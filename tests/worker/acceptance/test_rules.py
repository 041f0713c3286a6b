"""By each rule texts are right whatever was drafted: the same ones, or of the same distribution.

Distributions are those of thousands of requests that differ in their seeds alone and generate two
or three tokens in as many steps as it takes. Their frequencies are compared with the exact
distribution of whole texts, and so of every token given those before it. A right rule is beyond 5
standard deviations in three of ten million draws of seeds; the seeds are fixed. Where what is wrong
must show, it is beyond 8.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance import rules
from optimist_worker.core.acceptance.rules import verify_coupled, verify_rejection
from optimist_worker.core.acceptance.verdict import AcceptanceRule, Verdict
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

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)
CUT = SamplingParams(temperature=1.0, top_p=0.95, presence_penalty=0.4)
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
    ("name", "shape", "judge", "rule"),
    [
        *((name, CHAIN, verify_coupled, AcceptanceRule.COUPLED) for name in PARAMS),
        ("combined", TREE, verify_coupled, AcceptanceRule.COUPLED),
        ("combined", CHAIN, verify_rejection, AcceptanceRule.REJECTION),
        ("combined", TREE, verify_rejection, AcceptanceRule.REJECTION),
        ("combined", TREE, verify_rejection, None),
    ],
)
def test_texts_are_sampled_from_the_target(
    name: str, shape: tuple[int, ...], judge: Judge, rule: AcceptanceRule | None
) -> None:
    assert surprise_of(name, drafter(shape, "near", rule), judge) < MOST


def test_as_certain_drafts_any_may_be_chosen() -> None:
    def drafts(rows: Rows) -> Drafts:
        """Drafts of which only those are verified that came out likely."""
        drawn = draft(rows, (-1,), DRAFTERS["unrelated"], AcceptanceRule.REJECTION)
        assert drawn.probabilities is not None
        probability = drawn.probabilities.gather(2, drawn.token_ids[:, :, None])[:, 0, 0]
        is_certain = torch.ones(len(rows.slots), dtype=torch.bool)
        return replace(drawn, num_tokens=(probability > 0.3).long(), is_certain=is_certain)

    assert surprise_of("temperature", drafts, verify_rejection) < MOST


def draw(
    num_rows: int,
    shape: tuple[int, ...],
    logits: Tensor = DRAFTERS["near"],
    params: SamplingParams = SAMPLED,
) -> tuple[Rows, Drafts, Verdict]:
    """Draws drafts for the rule of rejection; returns them, and what becomes of them."""
    rows = Rows(TARGET, params, num_rows)
    drafts = draft(rows, shape, logits, AcceptanceRule.REJECTION)
    return rows, drafts, verify_rejection(rows.verify_pass(drafts))


@pytest.mark.parametrize(("shape", "ahead"), [(CHAIN, 1), (TREE, 1), (TREE, 2**17)])
@pytest.mark.parametrize(
    ("judge", "params", "rule"),
    [
        (verify_coupled, GREEDY, AcceptanceRule.REJECTION),
        (verify_coupled, CUT, AcceptanceRule.COUPLED),
        (verify_coupled, CUT, AcceptanceRule.REJECTION),
        (verify_rejection, GREEDY, AcceptanceRule.REJECTION),
        (verify_rejection, SamplingParams(presence_penalty=0.7, logit_bias={2: 1.0}), None),
    ],
)
def test_the_text_does_not_depend_on_what_was_drafted(
    judge: Judge,
    params: SamplingParams,
    rule: AcceptanceRule | None,
    shape: tuple[int, ...],
    ahead: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "_CACHED_SCORES", ahead)
    truth = generate(Rows(TARGET, params, 100), nothing_drafted, verify_coupled, 6)
    for logits in (TARGET, DRAFTERS["near"], DRAFTERS["unrelated"]):
        drafts = lambda rows, logits=logits: draft(rows, shape, logits, rule)  # noqa: E731
        assert torch.equal(generate(Rows(TARGET, params, 100), drafts, judge, 6), truth)


def test_acceptance_is_as_likely_as_can_be() -> None:
    """Sum of min(p, q) over the tokens (Leviathan et al., 2023)."""
    rows, _, verdict = draw(20_000, (-1,))
    last = int(rows.last_tokens()[0])
    best = float(torch.minimum(TARGET[last].softmax(-1), DRAFTERS["near"][last].softmax(-1)).sum())
    assert verdict.num_accepted.double().mean().item() == pytest.approx(best, abs=0.012)


def test_rounding_cannot_empty_what_is_left() -> None:
    """The draft's distribution is above the target's everywhere but where both are 0."""
    rows, drafts, _ = draw(1, (-1, -1), TARGET)
    assert drafts.probabilities is not None
    too_much = replace(drafts, probabilities=torch.full_like(drafts.probabilities, 1e6))
    verdict = verify_rejection(rows.verify_pass(too_much))
    assert 0 <= verdict.token_ids[0, 0] < VOCAB_SIZE
