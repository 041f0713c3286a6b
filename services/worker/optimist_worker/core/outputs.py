"""What a step gives back, packed on the device so that it comes to the host in one copy."""

from typing import NamedTuple

import numpy as np
import torch

from optimist_common.columns import Int32Column


class Outputs(NamedTuple):
    """The rows that ran, `[num_rows]` each but for the tokens."""

    lengths: Int32Column
    """Verified tokens, prompt and output."""
    num_emitted_tokens: Int32Column
    num_drafted_tokens: Int32Column
    num_accepted_tokens: Int32Column
    draft_sources: Int32Column
    is_short: Int32Column
    """1 where the blocks did not hold the known tokens."""
    is_broken: Int32Column
    """1 where the model's logits were not finite."""
    has_ended: Int32Column
    num_window_tokens: Int32Column
    """Tokens that the window has left to draft."""
    num_fed_tokens: Int32Column
    """Tokens that the pass was fed, drafts included."""
    token_ids: Int32Column
    """Emitted tokens, one row after the other."""


_NUM_COLUMNS = len(Outputs._fields) - 1


def pack(outputs: "Outputs") -> torch.Tensor:
    """Packs outputs whose columns are tensors, int64 or bool `[num_rows]`.

    Args:
        outputs: With `token_ids` `[num_rows, width]`; as many of a row count as it has emitted.

    Returns:
        Int32 `[num_rows, columns and tokens]`.
    """
    *columns, token_ids = outputs
    return torch.cat([torch.stack(columns, 1), token_ids], 1).int()


def unpack(packed: Int32Column) -> Outputs:
    """Reads what `pack` has packed, int32 `[num_rows, columns and tokens]`."""
    columns, token_ids = packed.T[:_NUM_COLUMNS], packed[:, _NUM_COLUMNS:]
    if token_ids.shape[1] == 1 and columns[1].all():
        return Outputs(*columns, token_ids[:, 0])
    is_emitted = columns[1][:, None] > np.arange(token_ids.shape[1])
    return Outputs(*columns, token_ids[is_emitted])


def no_outputs() -> Outputs:
    """Returns the outputs of no rows."""
    return unpack(np.empty((0, _NUM_COLUMNS), np.int32))
