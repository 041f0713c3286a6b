from hypothesis import given
from hypothesis import strategies as st

from optimist_common.sampling import SamplingParams
from optimist_worker.core.slot import Slot, Window

TOKENS = st.lists(st.integers(0, 2), max_size=8)


def slot(output: list[int]) -> Slot:
    return Slot("request", [9, 9, *output], 2, SamplingParams(), 100)


def test_drafts_go_on_where_the_output_stands() -> None:
    row = slot([1, 2])
    row.set_window(Window(1, [2, 3, 4, 5]))
    assert row.drafts(2) == [3, 4]
    assert row.drafts(9) == [3, 4, 5]
    assert row.drafts(0) == []
    row.extend([3])
    assert row.drafts(9) == [4, 5]


def test_a_window_ahead_waits_for_the_output() -> None:
    row = slot([])
    row.set_window(Window(2, [3, 4, 5]))
    assert row.drafts(9) == []
    row.extend([1, 2, 3])
    assert row.drafts(9) == [4, 5]


def test_a_window_that_mismatches_is_dropped() -> None:
    row = slot([1, 2])
    row.set_window(Window(0, [1, 7, 8]))
    assert row.window is None
    row.set_window(Window(0, [1, 2, 3, 4]))
    row.extend([7])
    assert row.window is None
    assert row.drafts(9) == []


@given(TOKENS, TOKENS, st.integers(0, 10), TOKENS)
def test_drafts_are_what_the_definition_says(
    output: list[int], emitted: list[int], base: int, expected: list[int]
) -> None:
    row = slot(output)
    row.set_window(Window(base, expected))
    row.extend(emitted)
    text = output + emitted
    since = text[base:]
    aligned = base <= len(text) and since == expected[: len(since)]
    assert row.drafts(100) == (expected[len(since) :] if aligned else [])
    assert row.token_ids[row.num_prompt_tokens :] == text
