"""Logits become scores as by transformers' processors, in any company."""

import math
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.processing import TokenCounts, count_tokens, process
from optimist_worker.core.acceptance.sampling_table import SamplingTable
from tests.worker.acceptance.test_sampling_table import table_of

VOCAB_SIZE = 50
LOGITS = torch.randn(6, VOCAB_SIZE, generator=torch.Generator().manual_seed(3)).double() * 3
WIDE = torch.randn(4, 3000, generator=torch.Generator().manual_seed(4)).double()


def process_alike(logits: Tensor, params: SamplingParams, counts: TokenCounts | None) -> Tensor:
    """Processes rows that all have the same parameters."""
    table = table_of(params, vocab_size=logits.shape[-1])
    slots = torch.zeros(len(logits), dtype=torch.int64)
    return process(logits, slots, table, table.needs([0]), counts)


def counts_of(token_ids: list[int], num_prompt: int, drafts: list[int]) -> TokenCounts:
    """Counts before the first draft, the second and so on, and after the last."""
    known = count_tokens(
        torch.tensor([token_ids], dtype=torch.int32),
        torch.tensor([num_prompt]),
        torch.tensor([len(token_ids)]),
        VOCAB_SIZE,
    )
    number = 1 + len(drafts)
    before = torch.ones(number, len(drafts)).tril(-1).bool()
    rows = torch.zeros(number, dtype=torch.int64)
    return known.with_drafts(rows, torch.tensor(drafts).long().expand(number, -1), before)


@pytest.mark.parametrize("logits", [LOGITS, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.6, top_k=7),
        SamplingParams(temperature=1.3, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.05),
        SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02),
        SamplingParams(temperature=0.8, top_k=1500, top_p=0.99),
        SamplingParams(temperature=2.0, top_k=1000, top_p=1.0, min_p=0.0),
    ],
)
def test_cuts_are_those_of_transformers(params: SamplingParams, logits: Tensor) -> None:
    processors: Any = transformers.LogitsProcessorList(
        [transformers.TemperatureLogitsWarper(params.temperature)]
    )
    if params.top_k:
        processors.append(transformers.TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        processors.append(transformers.TopPLogitsWarper(params.top_p))
    if params.min_p:
        processors.append(transformers.MinPLogitsWarper(params.min_p))
    expected = processors(torch.zeros((len(logits), 1), dtype=torch.int64), logits)
    torch.testing.assert_close(process_alike(logits, params, None), expected)


def test_tokens_as_likely_as_the_last_one_kept_stay() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    for params in (
        SamplingParams(temperature=1.0, top_k=2),
        SamplingParams(temperature=1.0, top_p=0.6),
        SamplingParams(temperature=1.0, top_k=3, top_p=0.6),
    ):
        kept = process_alike(logits, params, None)[0] > -math.inf
        assert kept.tolist() == [False, True, True, True, True, False]


TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=12)


@given(TOKENS.filter(bool), TOKENS, st.data())
def test_counts_at_a_draft_are_those_after_it_was_emitted(
    tokens: list[int], drafts: list[int], data: st.DataObject
) -> None:
    num_prompt = data.draw(st.integers(0, len(tokens)))
    counts = counts_of(tokens, num_prompt, drafts)
    for number in range(1 + len(drafts)):
        output = tokens[num_prompt:] + drafts[:number]
        for token in range(VOCAB_SIZE):
            assert counts.output[number, token] == output.count(token)
            assert counts.is_seen[number, token] == (token in tokens + drafts[:number])


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 49, 50, 70]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 1e-9]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.5]),
    logit_bias=st.sampled_from([{}, {3: 2.5}, {4: -math.inf, 9: 1.0}]),
)


@given(st.lists(PARAMS, min_size=6, max_size=6))
def test_rows_processed_together_are_as_alone(params: list[SamplingParams]) -> None:
    table: SamplingTable = table_of(*params)
    slots = torch.arange(6)
    counts = count_tokens(
        torch.tensor([[1, 4, 2, 7]]).expand(6, -1), slots.clamp(max=4), slots.clamp(max=4), 50
    )
    together = process(LOGITS, slots, table, table.needs(slots.tolist()), counts)
    assert bool((together > -math.inf).any(1).all())
    for slot in range(6):
        part = TokenCounts(counts.is_seen[slot : slot + 1], counts.output[slot : slot + 1])
        alone = process(
            LOGITS[slot : slot + 1], slots[slot : slot + 1], table, table.needs([slot]), part
        )
        assert torch.equal(together[slot], alone[0])
