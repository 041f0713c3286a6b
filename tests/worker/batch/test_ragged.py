import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.drafts import lay_out


@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=8), num_padded=st.integers(0, 4))
def test_elements_belong_to_their_rows(lengths: list[int], num_padded: int) -> None:
    size = sum(lengths) + num_padded
    ragged = lay_out(torch.tensor(lengths), size)
    elements = [(row, i) for row, length in enumerate(lengths) for i in range(length)]
    number = len(elements)
    assert ragged.size == size
    assert ragged.starts.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    found = zip(ragged.rows.tolist(), ragged.offsets.tolist(), strict=True)
    assert list(found)[:number] == elements
    assert ragged.is_real.tolist() == [True] * number + [False] * num_padded
    # Padding is a valid index nevertheless.
    assert all(0 <= row < len(lengths) for row in ragged.rows.tolist())
    assert ragged.offsets[number:].tolist() == [0] * num_padded
    assert ragged.is_exact == (num_padded == 0)


@pytest.mark.parametrize("size", [0, 3])
def test_there_may_be_padding_alone(size: int) -> None:
    ragged = lay_out(torch.tensor([0, 0]), size)
    assert ragged.is_real.tolist() == [False] * size
    assert ragged.starts.tolist() == [0, 0, 0]
