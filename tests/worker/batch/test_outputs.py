import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.draft_source import DraftSource
from optimist_worker.core.batch.outputs import Outputs, no_outputs, pack, unpack

NAMES = Outputs._fields[:-2]


@given(
    emitted=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    width=st.integers(4, 6),
    num_padded=st.integers(0, 2),
)
def test_what_is_packed_is_unpacked(emitted: list[int], width: int, num_padded: int) -> None:
    number = len(emitted)
    columns = {name: torch.arange(number) + 10 * i for i, name in enumerate(NAMES)}
    columns["num_emitted_tokens"] = torch.tensor(emitted)
    columns["is_short"] = torch.arange(number) % 2 == 0
    columns = {name: pad(column, num_padded) for name, column in columns.items()}
    tokens = torch.arange((number + num_padded) * width).view(-1, width)
    accepted = [max(count - 1, 0) for count in emitted]
    columns["num_accepted_tokens"] = pad(torch.tensor(accepted), num_padded)
    sources = torch.arange(number) % 3
    columns["draft_sources"] = pad(sources, num_padded)
    nodes = -tokens[:, 1:]
    packed = pack(Outputs(**columns, token_ids=tokens, accepted_nodes=nodes))
    assert packed.dtype == torch.int32
    assert packed.shape == (number + num_padded, len(NAMES) + 2 * width - 1)
    outputs = unpack(packed[:number].numpy())
    for name in NAMES:
        assert getattr(outputs, name).tolist() == columns[name][:number].tolist()
    expected = [row * width + i for row, count in enumerate(emitted) for i in range(count)]
    assert outputs.token_ids.tolist() == expected
    assert outputs.token_ids.dtype == np.int32
    of_windows = [
        nodes[row, i].item()
        for row, count in enumerate(accepted)
        for i in range(count)
        if sources[row] == DraftSource.PREDICTION
    ]
    assert outputs.accepted_nodes.tolist() == of_windows


def pad(column: torch.Tensor, number: int) -> torch.Tensor:
    return torch.cat([column, torch.ones(number, dtype=column.dtype)])


@given(st.lists(st.integers(0, 1), min_size=1, max_size=5))
def test_rows_may_emit_one_token_at_most(emitted: list[int]) -> None:
    number = len(emitted)
    columns = {name: torch.zeros(number, dtype=torch.int64) for name in NAMES}
    columns["num_emitted_tokens"] = torch.tensor(emitted)
    tokens = torch.arange(number)[:, None]
    packed = pack(Outputs(**columns, token_ids=tokens, accepted_nodes=tokens[:, 1:]))
    outputs = unpack(packed.numpy())
    assert outputs.token_ids.tolist() == [row for row, count in enumerate(emitted) if count]


def test_there_may_be_no_rows() -> None:
    outputs = no_outputs()
    assert [len(column) for column in outputs] == [0] * len(Outputs._fields)
