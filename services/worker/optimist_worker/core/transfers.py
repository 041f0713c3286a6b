"""Copies between host and device that the host does not wait for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from optimist_worker.core.operation import Operation


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a host tensor to the device; the host does not wait for it."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def receive(tensor: torch.Tensor) -> torch.Tensor:
    """Starts to copy a tensor to the host; there is nothing to copy if it is there."""
    if not tensor.is_cuda:
        return tensor
    on_host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return on_host.copy_(tensor, non_blocking=True)


_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float64: np.dtype(np.float64),
}


class Writes:
    """Values for the state on a device: all that come with a plan are sent and written at once.

    On the CPU each is written as it comes.
    """

    def __init__(self, device: torch.device) -> None:
        """Collects what is to be written on a device."""
        self._device = device
        self._targets: list[torch.Tensor] = []
        self._values: list[npt.NDArray[Any]] = []

    def put(self, target: torch.Tensor, values: Sequence[Any] | npt.NDArray[Any]) -> None:
        """Has values written to a one-dimensional view of a tensor, int32, int64 or float64.

        What is written at once is written in any order, so no two targets may overlap.
        """
        # A copy: PyTorch takes no memory that may only be read, as that of messages.
        array = np.array(values, _DTYPES[target.dtype])
        if self._device.type == "cpu":
            target.copy_(torch.from_numpy(array))
        else:
            self._targets.append(target)
            self._values.append(array)

    def flush(self) -> None:
        """Sends what was collected, and writes it."""
        if not self._targets:
            return
        targets, values = self._targets, self._values
        self._targets, self._values = [], []
        WRITE_STATE(send(pack_writes(targets, values), self._device), targets)


def pack_writes(targets: list[torch.Tensor], values: list[npt.NDArray[Any]]) -> torch.Tensor:
    """Returns what `write_state` takes, on the host.

    Of each target its address, its stride, words of an element, and its first and last words, all
    int64; then the words of all, int32.
    """
    words = torch.from_numpy(np.concatenate([array.view(np.int32) for array in values]))
    ends = np.cumsum([array.nbytes // 4 for array in values]).tolist()
    runs = [
        (target.data_ptr(), target.stride(0), target.itemsize // 4, first, end)
        for target, first, end in zip(targets, [0, *ends], ends, strict=False)
    ]
    return torch.cat([torch.tensor(runs).view(torch.int32).flatten(), words])


def write_state(packed: torch.Tensor, targets: list[torch.Tensor]) -> None:
    """Writes to each target its part of what `pack_writes` has returned."""
    first = 10 * len(targets)
    for target in targets:
        size = target.numel() * target.itemsize // 4
        # Views of eight bytes have to begin at a multiple of them.
        target.copy_(packed[first : first + size].clone().view(target.dtype))
        first += size


WRITE_STATE = Operation("write_state", write_state, "optimist_worker.core.write_kernel:write_state")
