"""Rows of different lengths, one after the other in a flat tensor of a size known beforehand."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(slots=True)
class Ragged:
    """Which row, and which of its elements, each element of a flat tensor is."""

    starts: torch.Tensor
    """First element of each row, and after the last one; int64 `[num_rows + 1]`."""
    rows: torch.Tensor
    """Row of each element, int64 `[size]`; of padding, some row."""
    offsets: torch.Tensor
    """Place in its row, int64 `[size]`; of padding, 0."""
    is_real: torch.Tensor
    """False for padding, bool `[size]`."""
    is_exact: bool
    """Whether it is known to the host that there is no padding."""

    @property
    def size(self) -> int:
        """Number of elements, padding included."""
        return len(self.rows)


def lay_out(lengths: torch.Tensor, size: int) -> Ragged:
    """Lays rows out one after the other.

    Args:
        lengths: Elements per row, int64 `[num_rows]`.
        size: At least their sum; what is left over is padding at the end.
    """
    if lengths.device.type == "cpu" and int(lengths.sum()) == size:
        return _lay_out_exactly(lengths)
    ends = lengths.cumsum(0)
    starts = torch.cat([torch.zeros_like(ends[:1]), ends])
    places = torch.arange(size, device=lengths.device)
    rows = torch.searchsorted(ends, places, right=True)
    is_real = rows < len(lengths)
    rows = rows.clamp(max=len(lengths) - 1)
    offsets = torch.where(is_real, places - starts[rows], 0)
    return Ragged(starts, rows, offsets, is_real, is_exact=False)


def _lay_out_exactly(lengths: torch.Tensor) -> Ragged:
    """Lays rows out without padding, with NumPy, whose calls take a fifth of the time."""
    counts = lengths.numpy()
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    rows = np.repeat(np.arange(len(counts)), counts)
    offsets = np.arange(len(rows)) - starts[rows]
    is_real = np.ones(len(rows), np.bool_)
    return Ragged(
        starts=torch.from_numpy(starts),
        rows=torch.from_numpy(rows),
        offsets=torch.from_numpy(offsets),
        is_real=torch.from_numpy(is_real),
        is_exact=True,
    )
