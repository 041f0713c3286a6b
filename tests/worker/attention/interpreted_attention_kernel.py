"""The kernel against SDPA, in Triton's interpreter; test_attention_kernel.py runs this file.

TRITON_INTERPRET=1 must be set before Triton is imported anywhere in the process. The interpreter
has no products of bfloat16: float16 stands for it.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_worker.core.attention import kv_write
from optimist_worker.core.attention import launch as attention_launch
from optimist_worker.core.attention.paged_attention import attend_rows
from tests.worker.attention.attention_case import TREE, WIDE_TREE, Case, Shape, make_case
from tests.worker.handmade_batch import BatchRow

SCALE = 0.3
SHORT = [BatchRow(37, 1), BatchRow(0, 19), BatchRow(20, 2, TREE)]
LONG = [BatchRow(300, 1), BatchRow(520, 3), BatchRow(270, 1, TREE), BatchRow(0, 66)]
"""Several parts of keys, and one row with too many tokens for parts."""
ONE_HEAD = Shape(1, 1)


def attend(case: Case, batch_options: dict[str, Any] | None = None, **options: Any) -> torch.Tensor:
    batch = case.batch(**(batch_options or {}))
    options = {"window": None, "softcap": None, "sinks": None, **options}
    return attention_launch.attend(
        case.query, case.pool.keys[0], case.pool.values[0], batch, scale=SCALE, **options
    )


def check(case: Case, **options: Any) -> None:
    output = attend(case, **options)
    exact = {"window": None, "softcap": None, "sinks": None, **options}
    expected = attend_rows(
        case.query.double(),
        case.pool.keys[0].double(),
        case.pool.values[0].double(),
        case.batch(),
        scale=SCALE,
        **exact,
    )
    tolerance = 2e-5 if output.dtype == torch.float32 else 4e-3
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("rows", [SHORT, LONG], ids=["short", "long"])
def test_rows_of_every_kind(rows: list[BatchRow], window: int | None) -> None:
    check(make_case(rows, ONE_HEAD, torch.float32), window=window)


def test_half_precision() -> None:
    check(make_case(LONG[:3], dtype=torch.float16))


@pytest.mark.parametrize(
    "shape",
    [
        Shape(4, 4),
        Shape(6, 2, 10, 10),
        Shape(5, 1, 24, 40),
        Shape(17, 1, 96, 80),
    ],
)
def test_heads_may_share_keys_and_differ_in_size(shape: Shape) -> None:
    check(make_case([BatchRow(0, 7), BatchRow(270, 1, TREE[:3])], shape, torch.float32))


@pytest.mark.parametrize("window", [None, 9])
def test_softcap_and_sinks(window: int | None) -> None:
    case = make_case(LONG[:3], Shape(2, 1), torch.float32)
    sinks = torch.tensor([3.0, -1.0])
    check(case, window=window, softcap=0.7)
    check(case, window=window, softcap=0.7, sinks=sinks)


@pytest.mark.parametrize("window", [None, 3])
def test_trees_of_64_nodes(window: int | None) -> None:
    rows = [BatchRow(250, 1, WIDE_TREE), BatchRow(5, 2)]
    check(make_case(rows, ONE_HEAD, torch.float32), window=window)


def test_rows_with_more_keys_than_parts_of_the_least_size() -> None:
    rows = [BatchRow(8500, 1), BatchRow(8191, 1)]
    check(make_case(rows, ONE_HEAD, torch.float32))


@pytest.mark.parametrize("rows", [SHORT, LONG], ids=["short", "long"])
def test_padding_is_zero_and_changes_nothing(rows: list[BatchRow]) -> None:
    case = make_case(rows, ONE_HEAD, torch.float32, num_padded_tokens=5)
    plain = attend(case, {"num_padded_tokens": 5})
    assert torch.equal(plain[:, -5:], torch.zeros_like(plain[:, -5:]))
    options = {"num_padded_tokens": 5, "num_padded_rows": 3, "bounds": (200, 1000)}
    assert torch.equal(attend(case, options), plain)


def test_batch_of_padding_alone() -> None:
    case = make_case([], dtype=torch.float32, num_padded_tokens=4)
    for bounds in ((1, 1), (100, 1000)):
        output = attend(case, {"num_padded_tokens": 4, "num_padded_rows": 2, "bounds": bounds})
        assert torch.equal(output, torch.zeros(1, 4, 4, 16))


@pytest.mark.parametrize(
    ("dtype", "window"), [(torch.float32, None), (torch.float32, 24), (torch.float16, None)]
)
def test_rows_are_bit_for_bit_the_same_alone_and_in_a_batch(
    dtype: torch.dtype, window: int | None
) -> None:
    case = make_case([*SHORT, *LONG], ONE_HEAD, dtype)
    options: dict[str, Any] = {"window": window, "sinks": torch.tensor([3.0])}
    sizes = [row.num_queries for row in case.rows]
    together = torch.split(attend(case, **options)[0], sizes)
    for number, output in enumerate(together):
        assert torch.equal(attend(case.alone(number), **options)[0], output)


@pytest.mark.parametrize("shape", [Shape(4, 2), Shape(6, 3, 24, 10)])
def test_keys_and_values_are_written_to_their_places(shape: Shape) -> None:
    case = make_case([BatchRow(40, 5)], shape, torch.float32)
    keys, values = case.pool.keys[0], case.pool.values[0]
    expected = (keys.clone(), values.clone())
    slot_mapping = torch.tensor([40, 3, 17, 0])
    key = torch.randn(1, 4, shape.num_kv_heads, shape.key_dim).transpose(1, 2)
    value = torch.randn(1, shape.num_kv_heads, shape.value_dim, 4).transpose(2, 3)
    expected[0][slot_mapping] = key[0].transpose(0, 1)
    expected[1][slot_mapping] = value[0].transpose(0, 1)
    kv_write.write(key, value, keys, values, slot_mapping)
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])


@st.composite
def rows(draw: st.DrawFn) -> BatchRow:
    num_nodes = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(num_nodes))
    return BatchRow(
        draw(st.integers(0, 400)), draw(st.integers(1, 20) | st.integers(60, 70)), parents
    )


@settings(max_examples=6, deadline=None, derandomize=True)
@given(batch=st.lists(rows(), min_size=1, max_size=3), window=st.none() | st.integers(1, 300))
def test_random_batches(batch: list[BatchRow], window: int | None) -> None:
    check(make_case(batch, ONE_HEAD, torch.float32), window=window)
