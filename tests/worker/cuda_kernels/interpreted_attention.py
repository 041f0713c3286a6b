"""What only the kernel has to show, in Triton's interpreter; test_triton.py runs this.

The interpreter has no products of bfloat16: float16 is used instead.
"""

from typing import Any

import pytest
import torch

from optimist_worker.core.attention import kv_write, launch
from tests.worker.attention.attention_case import TREE, BatchRow, Shape, make_case
from tests.worker.attention.test_attention import LONG, SHAPE, check


def test_half_precision() -> None:
    check(make_case(LONG[:3], dtype=torch.float16))


def test_rows_with_more_keys_than_parts_of_the_least_size() -> None:
    check(make_case([BatchRow(8500, 1), BatchRow(8191, 1)], SHAPE, torch.float32))


def test_parts_take_no_memory_for_tokens_of_long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = []
    new_parts = launch._new_parts

    def note(output: torch.Tensor, num_parts: int, num_slots: int) -> Any:
        slots.append((num_parts, num_slots))
        return new_parts(output, num_parts, num_slots)

    monkeypatch.setattr(launch, "_new_parts", note)
    rows = [BatchRow(520, 3), BatchRow(0, 200), BatchRow(270, 1), BatchRow(300, 1, TREE)]
    check(make_case(rows[:3], SHAPE, torch.float32))
    check(make_case(rows[1:], SHAPE, torch.float32))
    check(make_case(rows[::2], SHAPE, torch.float32))
    assert slots == [(3, 192), (2, 192), (3, 4)]


@pytest.mark.parametrize("shape", [Shape(4, 2), Shape(6, 3, 24, 10)])
def test_keys_and_values_are_written_to_their_indices(shape: Shape) -> None:
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
