"""Every token attends to exactly what it may see, whatever else is in the batch."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_worker.core.attention.paged_attention import attend_rows, paged_attention
from tests.worker.attention.attention_case import (
    MIXED,
    TREE,
    WIDE_TREE,
    Case,
    Shape,
    expected_output,
    make_case,
)
from tests.worker.handmade_batch import BatchRow

SCALE = 0.3


def attend(case: Case, batch_options: dict[str, Any] | None = None, **options: Any) -> torch.Tensor:
    """Returns `[num_tokens, num_heads, value_dim]`."""
    batch = case.batch(**(batch_options or {}))
    options = {"window": None, "softcap": None, "sinks": None, **options}
    output = attend_rows(
        case.query, case.pool.keys[0], case.pool.values[0], batch, scale=SCALE, **options
    )
    return output[0]


def check(case: Case, **options: Any) -> None:
    torch.testing.assert_close(attend(case, **options), expected_output(case, SCALE, **options))


@pytest.mark.parametrize("consecutive", [True, False])
@pytest.mark.parametrize("window", [None, 1, 9, 24])
def test_rows_of_every_kind_see_what_they_may(window: int | None, consecutive: bool) -> None:
    check(make_case(MIXED, consecutive=consecutive), window=window)


@pytest.mark.parametrize(
    "shape", [Shape(4, 4), Shape(6, 2, 10, 10), Shape(4, 1, 24, 16), Shape(2, 1, 8, 20)]
)
def test_heads_may_share_keys_and_differ_in_size(shape: Shape) -> None:
    check(make_case(MIXED, shape))


@pytest.mark.parametrize("window", [None, 9])
def test_softcap_and_sinks(window: int | None) -> None:
    case = make_case(MIXED)
    sinks = torch.tensor([0.5, -1.0, 3.0, 0.0], dtype=torch.float64)
    check(case, window=window, softcap=0.7)
    check(case, window=window, sinks=sinks)
    check(case, window=window, softcap=0.7, sinks=sinks)


@pytest.mark.parametrize("window", [None, 3, 20])
def test_trees_of_64_nodes(window: int | None) -> None:
    check(make_case([BatchRow(30, 1, WIDE_TREE), BatchRow(5, 2)]), window=window)


def test_window_of_a_tree_is_measured_in_positions() -> None:
    # Ten siblings: the last one is nine places but no position behind the first one.
    case = make_case([BatchRow(12, 1, (-1,) * 10)])
    output = attend(case, window=4)
    torch.testing.assert_close(output, expected_output(case, SCALE, window=4))
    assert case.rows[0].visible(10, 4) == [10, 11, 12, 22]


def test_padding_is_finite_and_changes_nothing() -> None:
    case = make_case(MIXED, num_padded_tokens=5)
    options = {"num_padded_tokens": 5, "num_padded_rows": 3, "bounds": (200, 1000)}
    output = attend(case, options)
    torch.testing.assert_close(output[:-5], expected_output(case, SCALE))
    assert torch.equal(output[-5:], torch.zeros_like(output[-5:]))


def test_batch_of_padding_alone() -> None:
    case = make_case([], num_padded_tokens=4)
    output = attend(case, {"num_padded_tokens": 4, "num_padded_rows": 2})
    assert torch.equal(output, torch.zeros(4, 4, 16, dtype=torch.float64))


def test_row_without_tokens_between_others() -> None:
    case = make_case([BatchRow(20, 2), BatchRow(33, 0), BatchRow(8, 1, TREE)])
    check(case)


def test_rows_are_the_same_alone_and_in_a_batch() -> None:
    case = make_case(MIXED, dtype=torch.float32)
    together = torch.split(attend(case), [row.num_queries for row in MIXED])
    for number, output in enumerate(together):
        assert torch.equal(attend(case.alone(number)), output)


def test_masks_are_made_once_per_window() -> None:
    batch = make_case(MIXED).batch()
    spans = batch.spans(None, torch.float64)
    assert batch.spans(None, torch.float64) is spans
    assert batch.spans(9, torch.float64) is not spans
    assert batch.spans(9, torch.float64) is batch.spans(9, torch.float64)
    # One token of a chain needs no mask, whatever the window: hidden keys are not read.
    assert spans[0].bias is None
    assert batch.spans(9, torch.float64)[0].bias is None


@pytest.mark.parametrize("scaling", [None, 0.11])
def test_layer_writes_its_keys_and_values_before_it_reads(scaling: float | None) -> None:
    case = make_case(MIXED)
    layer = SimpleNamespace(layer_idx=0)
    batch = case.batch()
    memory = (case.pool.keys[0], case.pool.values[0])
    key, value = (part[batch.slot_mapping].transpose(0, 1)[None].clone() for part in memory)
    for part in memory:
        part[batch.slot_mapping] = float("nan")
    module: Any = layer
    output, weights = paged_attention(
        module, case.query, key, value, None, paged=batch, scaling=scaling, dropout=0.0
    )
    assert weights is None
    expected = expected_output(case, 0.25 if scaling is None else scaling)
    torch.testing.assert_close(output[0], expected)


def test_padding_is_written_to_the_trash_block() -> None:
    case = make_case([BatchRow(3, 2)], num_padded_tokens=2)
    before = case.pool.keys[0].clone()
    module: Any = SimpleNamespace(layer_idx=0)
    new = torch.zeros(1, 2, 4, 16, dtype=torch.float64)
    paged_attention(module, case.query, new, new, None, paged=case.batch(num_padded_tokens=2))
    changed = (case.pool.keys[0] != before).any(-1).any(-1).nonzero().flatten().tolist()
    first = case.tables[0][0] * 16
    trash = (case.pool.num_blocks - 1) * 16
    assert changed == [first + 3, first + 4, trash]


@st.composite
def rows(draw: st.DrawFn) -> BatchRow:
    num_nodes = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(num_nodes))
    return BatchRow(draw(st.integers(0, 70)), draw(st.integers(1, 20)), parents)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.lists(rows(), min_size=1, max_size=5),
    window=st.none() | st.integers(1, 60),
    consecutive=st.booleans(),
)
def test_random_batches(batch: list[BatchRow], window: int | None, consecutive: bool) -> None:
    check(make_case(batch, consecutive=consecutive), window=window)
