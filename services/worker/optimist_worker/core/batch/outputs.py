"""What a step gives back, packed on the device so that it comes to the host in one copy."""

from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch

from optimist_common.columns import Int32Column

Column = TypeVar("Column", torch.Tensor, Int32Column)


class Outputs(NamedTuple, Generic[Column]):
    """The rows that ran, `[num_rows]` each but for the tokens; on the device or on the host."""

    lengths: Column
    """Verified tokens, prompt and output."""
    num_emitted_tokens: Column
    num_drafted_tokens: Column
    num_accepted_tokens: Column
    draft_sources: Column
    is_short: Column
    """1 where the blocks did not hold the known tokens."""
    is_broken: Column
    """1 where the model's logits were not finite."""
    has_ended: Column
    num_window_tokens: Column
    """Nodes that the window has left to draft."""
    num_fed_tokens: Column
    """Tokens that the pass was fed, drafts included."""
    token_ids: Column
    """Emitted tokens, one row after the other."""


_NUM_COLUMNS = len(Outputs._fields) - 1


def pack(outputs: Outputs[torch.Tensor]) -> torch.Tensor:
    """Packs outputs, int64 or bool `[num_rows]`.

    Args:
        outputs: With `token_ids` `[num_rows, width]`; as many of a row count as it has emitted.

    Returns:
        Int32 `[num_rows, columns and tokens]`.
    """
    *columns, token_ids = outputs
    return torch.cat([torch.stack(columns, 1), token_ids], 1).int()


def unpack(packed: Int32Column) -> Outputs[Int32Column]:
    """Reads what `pack` has packed, int32 `[num_rows, columns and tokens]`."""
    columns, token_ids = packed.T[:_NUM_COLUMNS], packed[:, _NUM_COLUMNS:]
    if token_ids.shape[1] == 1 and columns[1].all():
        return Outputs._make([*columns, token_ids[:, 0]])
    is_emitted = columns[1][:, None] > np.arange(token_ids.shape[1])
    return Outputs._make([*columns, token_ids[is_emitted]])


def no_outputs() -> Outputs[Int32Column]:
    """Returns the outputs of no rows."""
    return unpack(np.empty((0, _NUM_COLUMNS), np.int32))
