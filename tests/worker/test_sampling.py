import math
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.sampling import SamplingParams
from optimist_worker.core.noise import gumbel
from optimist_worker.core.sampling import count_tokens, process_logits

CPU = torch.device("cpu")
LOGITS = torch.randn(6, 50, generator=torch.Generator().manual_seed(3)).double() * 3


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.6, top_k=7),
        SamplingParams(temperature=1.3, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.05),
        SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02),
        SamplingParams(temperature=2.0, top_k=1000, top_p=1.0, min_p=0.0),
    ],
)
def test_cuts_are_those_of_transformers(params: SamplingParams) -> None:
    processors: Any = transformers.LogitsProcessorList(
        [transformers.TemperatureLogitsWarper(params.temperature)]
    )
    if params.top_k:
        processors.append(transformers.TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        processors.append(transformers.TopPLogitsWarper(params.top_p))
    if params.min_p:
        processors.append(transformers.MinPLogitsWarper(params.min_p))
    expected = processors(torch.zeros((6, 1), dtype=torch.int64), LOGITS)
    torch.testing.assert_close(process_logits(LOGITS, params, None), expected)


def test_repetition_penalty_is_that_of_transformers() -> None:
    params = SamplingParams(repetition_penalty=1.7)
    tokens = [3, 4, 4, 9, 30]
    counts = count_tokens(tokens, 3, [], 50, CPU)
    processor = transformers.RepetitionPenaltyLogitsProcessor(1.7)
    expected = processor(torch.tensor([tokens]), LOGITS[:1])
    torch.testing.assert_close(process_logits(LOGITS[:1], params, counts), expected)


def test_presence_and_frequency_look_at_the_output_alone() -> None:
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    counts = count_tokens([7, 7, 8, 9, 9], 3, [9, 7], 50, CPU)
    changes = process_logits(LOGITS[:3], params, counts) - LOGITS[:3]
    expected = torch.zeros(3, 50, dtype=torch.float64)
    expected[:, 9] = torch.tensor([-1.0, -1.25, -1.25])
    expected[:, 7] = torch.tensor([0.0, 0.0, -0.75])
    torch.testing.assert_close(changes, expected)


def test_bias_is_added_before_the_penalties() -> None:
    params = SamplingParams(logit_bias={5: 100.0, 6: -math.inf}, repetition_penalty=2.0)
    counts = count_tokens([5], 1, [], 50, CPU)
    scores = process_logits(LOGITS[:1], params, counts)
    assert scores[0, 5].item() == pytest.approx((LOGITS[0, 5].item() + 100.0) / 2.0)
    assert scores[0, 6].item() == -math.inf


@given(
    st.lists(st.integers(0, 19), max_size=12),
    st.lists(st.integers(0, 19), max_size=8),
    st.data(),
)
def test_counts_at_a_draft_are_those_after_it_was_emitted(
    tokens: list[int], drafts: list[int], data: st.DataObject
) -> None:
    num_prompt = data.draw(st.integers(0, len(tokens)))
    counts = count_tokens(tokens, num_prompt, drafts, 20, CPU)
    assert counts.output.shape == (1 + len(drafts), 20)
    for number in range(1 + len(drafts)):
        undrafted = count_tokens(tokens + drafts[:number], num_prompt, [], 20, CPU)
        assert torch.equal(counts.sequence[number], undrafted.sequence[0])
        assert torch.equal(counts.output[number], undrafted.output[0])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=12),
        SamplingParams(temperature=1.5, top_p=0.85),
        SamplingParams(temperature=1.2, min_p=0.03),
        SamplingParams(temperature=1.2, top_k=30, top_p=0.95, min_p=0.01),
    ],
)
def test_coupled_sampling_draws_from_the_processed_distribution(params: SamplingParams) -> None:
    num_draws = 40_000
    scores = process_logits(LOGITS[:1], params, None)
    probabilities = scores.softmax(-1)[0]
    drawn = (scores + gumbel(5, torch.arange(num_draws), 50)).argmax(-1)
    counts = torch.bincount(drawn, minlength=50).double()
    assert counts[probabilities == 0.0].sum().item() == 0.0
    expected = probabilities * num_draws
    likely = expected >= 5.0
    chi_square = ((counts - expected) ** 2 / expected)[likely].sum().item()
    degrees = int(likely.sum()) - 1
    # Wilson-Hilferty: the cube root is nearly normal; 3.7 standard deviations are one in 10,000.
    spread = 2.0 / (9.0 * degrees)
    assert ((chi_square / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < 3.7
