import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance import accept, choose_tokens
from optimist_worker.core.row import Row
from optimist_worker.core.slot import Slot

TOKENS = st.lists(st.integers(0, 2), max_size=6)


@given(TOKENS, TOKENS, st.integers(0, 2))
def test_emitted_are_the_accepted_drafts_and_one_token(
    drafts: list[int], chosen: list[int], bonus: int
) -> None:
    chosen = [*(chosen + [0] * len(drafts))[: len(drafts)], bonus]
    emitted = accept(drafts, chosen)
    accepted = len(emitted) - 1
    assert emitted == chosen[: accepted + 1]
    assert emitted[:-1] == drafts[:accepted]
    assert accepted == len(drafts) or emitted[-1] != drafts[accepted]


def test_rows_in_the_middle_of_a_prompt_choose_nothing() -> None:
    sampled = SamplingParams(temperature=1.0)
    for sampling in (SamplingParams(), sampled):
        row = Row(0, Slot("a", [1, 2, 3], 3, sampling, 100), 2, [])
        assert choose_tokens(torch.zeros(0, 8), [row]) == [[]]
        assert accept([], []) == []


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = torch.full((4, 8), -50.0)
    logits[torch.arange(4), torch.tensor([5, 6, 7, 1])] = 50.0
    rows = [
        Row(0, Slot("a", [1, 2], 2, SamplingParams(), 100), 2, [5]),
        Row(1, Slot("b", [1, 2], 2, SamplingParams(temperature=1.0, seed=1), 100), 2, []),
        Row(2, Slot("c", [1, 2], 2, SamplingParams(logit_bias={3: 200.0}), 100), 2, []),
    ]
    assert choose_tokens(logits, rows) == [[5, 6], [7], [3]]


def test_logits_that_are_not_finite_spoil_their_row_alone() -> None:
    logits = torch.zeros(3, 8)
    logits[1, 4] = float("nan")
    rows = [Row(slot, Slot("a", [1], 1, SamplingParams(), 100), 1, []) for slot in range(3)]
    choices = choose_tokens(logits, rows)
    assert [choice is None for choice in choices] == [False, True, False]
