"""Every token attends to exactly what it may see, whatever else is in the batch.

Kernels are tried by the same checks in place of `attend_rows`.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_worker.core.attention.paged_attention import attend_rows, paged_attention
from tests.worker.attention.attention_case import (
    BLOCK_SIZE,
    MIXED,
    TREE,
    WIDE_TREE,
    BatchRow,
    Case,
    Shape,
    expected_output,
    make_case,
)

SCALE = 0.3
SHORT = [BatchRow(37, 1), BatchRow(0, 19), BatchRow(20, 2, TREE)]
LONG = [BatchRow(300, 1), BatchRow(520, 3), BatchRow(270, 1, TREE), BatchRow(0, 130)]
"""Several parts of keys, and one row with too many tokens for parts."""
TILED = [BatchRow(0, 300), BatchRow(30, 128), BatchRow(9, 140, TREE)]
ROWS = {
    "long": LONG,
    "tree of 64 nodes": [BatchRow(250, 1, WIDE_TREE), BatchRow(5, 2)],
    "mixed": MIXED,
    "tiled": TILED,
    "decoded": [BatchRow(9, 1), BatchRow(300, 1)],
    "row without tokens": [BatchRow(20, 2), BatchRow(33, 0), BatchRow(8, 1, TREE)],
}
DTYPE = torch.float64
TOLERANCES = {torch.float16: 4e-3, torch.float32: 2e-5, torch.float64: 1e-7}
SHAPE = Shape()
WINDOWS = [None, 9]


def attend(case: Case, batch_options: dict[str, Any] | None = None, **options: Any) -> torch.Tensor:
    """Returns `[num_tokens, num_heads, value_dim]`."""
    batch = case.batch(**(batch_options or {}))
    options = {"window": None, "softcap": None, "sinks": None, **options}
    keys, values = case.pool.keys[0], case.pool.values[0]
    return attend_rows(case.query, keys, values, batch, scale=SCALE, **options)[0]


def check(case: Case, **options: Any) -> None:
    output = attend(case, **options)
    tolerance = TOLERANCES[output.dtype]
    expected = expected_output(case, SCALE, **options)
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("rows", ROWS)
def test_rows_of_every_kind_see_what_they_may(rows: str, window: int | None) -> None:
    check(make_case(ROWS[rows], SHAPE, DTYPE), window=window)


@pytest.mark.parametrize("rows", ROWS)
def test_bfloat16_differs_by_rounding(rows: str) -> None:
    case = make_case(ROWS[rows], SHAPE, torch.bfloat16)
    output, expected = attend(case).double(), expected_output(case, SCALE)
    assert (output - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize(
    "shape", [Shape(4, 4), Shape(6, 2, 10, 10), Shape(5, 1, 24, 40), Shape(17, 1, 96, 80)]
)
def test_heads_may_share_keys_and_differ_in_size(shape: Shape) -> None:
    check(make_case([BatchRow(0, 7), BatchRow(270, 1, TREE[:3])], shape, DTYPE))


@pytest.mark.parametrize("window", [None, 9])
def test_softcap_and_sinks(window: int | None) -> None:
    case = make_case(LONG[:3], Shape(2, 1), DTYPE)
    sinks = torch.tensor([3.0, -1.0], dtype=DTYPE)
    check(case, window=window, softcap=0.7)
    check(case, window=window, sinks=sinks)
    check(case, window=window, softcap=0.7, sinks=sinks)


@pytest.mark.parametrize("rows", ROWS)
def test_padding_is_zero_and_changes_nothing(rows: str) -> None:
    case = make_case(ROWS[rows], SHAPE, DTYPE, num_padded_tokens=5)
    plain = attend(case, {"num_padded_tokens": 5})
    assert torch.equal(plain[-5:], torch.zeros_like(plain[-5:]))
    options = {"num_padded_tokens": 5, "num_padded_rows": 3, "bounds": (200, 1000)}
    assert torch.equal(attend(case, options), plain)


def check_alone(case: Case, **options: Any) -> None:
    """Compares each row bit for bit with the same one alone."""
    together = torch.split(attend(case, **options), [row.num_queries for row in case.rows])
    for number, output in enumerate(together):
        assert torch.equal(attend(case.alone(number), **options), output)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 24])
def test_rows_are_bit_for_bit_the_same_alone_and_in_a_batch(
    window: int | None, dtype: torch.dtype
) -> None:
    shape = Shape(6, 2, 64, 64)
    case = make_case([*SHORT, *LONG, *TILED], shape, dtype)
    check_alone(case, window=window, sinks=torch.linspace(-1, 3, shape.num_heads))


def test_what_a_row_must_not_read_may_be_anything() -> None:
    case = make_case([*SHORT, BatchRow(20, 2, TREE)], SHAPE, DTYPE)
    expected = attend(case)
    for row, table in zip(case.rows, case.tables, strict=True):
        last = (table[-1] + 1) * BLOCK_SIZE
        for memory in (case.pool.keys[0], case.pool.values[0]):
            memory[last - len(table) * BLOCK_SIZE + row.num_keys : last] = float("nan")
    assert torch.equal(attend(case), expected)


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


@st.composite
def rows(draw: st.DrawFn) -> BatchRow:
    num_nodes = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(num_nodes))
    return BatchRow(draw(st.integers(0, 70)), draw(st.integers(1, 20)), parents)


@settings(max_examples=15, deadline=None)
@given(
    batch=st.lists(rows(), min_size=1, max_size=5),
    window=st.none() | st.integers(1, 60),
)
def test_random_batches(batch: list[BatchRow], window: int | None) -> None:
    case = make_case(batch, SHAPE, DTYPE)
    check(case, window=window)
    check_alone(case, window=window)
