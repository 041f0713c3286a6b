"""Values from the host to wherever they belong, in one launch."""

import torch
import triton
import triton.language as tl

_TILE = 1024


def write_state(packed: torch.Tensor, targets: list[torch.Tensor]) -> None:
    """Is `transfers.write_state`."""
    number = len(targets)
    header = packed[: 10 * number].view(torch.int64)
    with torch.cuda.device_of(packed):
        write_run[(number,)](header, packed[10 * number :], _TILE)


@triton.jit
def write_run(runs, words, tile: tl.constexpr):
    """Writes the words of one target, see `transfers.pack_writes`; the grid is `[targets]`."""
    run = runs + tl.program_id(0) * 5
    target = tl.load(run).to(tl.pointer_type(tl.int32))
    stride, size = tl.load(run + 1), tl.load(run + 2)
    first, end = tl.load(run + 3), tl.load(run + 4)
    for start in range(first, end, tile):
        word = start + tl.arange(0, tile)
        values = tl.load(words + word, mask=word < end)
        index = word - first
        at = index // size * stride * size + index % size
        tl.store(target + at, values, mask=word < end)
