"""Operations with a kernel of ours on CUDA, and plain PyTorch everywhere else."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch


class Operation:
    """One operation in two implementations that compute the same within rounding.

    `plain` also serves where the kernel was found to fail: then `is_replaced` is set, once and for
    the whole process.
    """

    def __init__(self, name: str, plain: Callable[..., Any], kernel: str) -> None:
        """Makes an operation.

        Args:
            name: Shown in logs and metrics.
            plain: In PyTorch, for any device; the first argument of both is a tensor.
            kernel: What launches the kernel, as `module:function`. Triton is not installed with a
                worker for the CPU, so the module is imported when it is first needed.
        """
        self.name, self.plain, self.is_replaced = name, plain, False
        self._module, self._function = kernel.split(":")

    def __call__(self, inputs: torch.Tensor, *others: Any, **named: Any) -> Any:
        """Computes by the kernel if it can run on the inputs' device, else by plain PyTorch."""
        if runs_kernels(inputs) and not self.is_replaced:
            return self.kernel(inputs, *others, **named)
        return self.plain(inputs, *others, **named)

    @property
    def kernel(self) -> Callable[..., Any]:
        """What launches the kernel."""
        launch: Callable[..., Any] = getattr(import_module(self._module), self._function)
        return launch


def runs_kernels(tensor: torch.Tensor) -> bool:
    """Returns whether kernels can compute with such a tensor."""
    return tensor.is_cuda and _has_kernels(tensor.device, tensor.dtype)


@cache
def _has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """They need tensor cores of Ampere or later, and have no float64."""
    return (
        dtype != torch.float64
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )
