"""Operations with a kernel of ours on some devices, and plain PyTorch everywhere else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

Function = Callable[..., Any]


class Operation:
    """One operation in several implementations that compute the same within rounding.

    `plain` also serves where the kernel was found to fail: then `is_replaced` is set, once and for
    the whole process.
    """

    def __init__(
        self, name: str, plain: Function, cuda: str | None, cpu: str | None = None
    ) -> None:
        """Makes an operation, called by its name in logs and metrics.

        `plain` is in PyTorch, for any device; the first argument of all is a tensor. `cuda` is what
        launches the kernel for CUDA, as `module:function`, None if there is none: Triton is not
        installed with a worker for the CPU, so the module is imported when it is first needed.
        `cpu` is the same for the CPU, where the module needs a C++ compiler once.
        """
        self.name, self.plain, self.is_replaced = name, plain, False
        self._cuda, self._cpu = cuda, cpu

    def __call__(self, inputs: torch.Tensor, *others: Any, **named: Any) -> Any:
        """Computes by the kernel if there is one for such inputs, else by plain PyTorch."""
        return (self.kernel_for(inputs) or self.plain)(inputs, *others, **named)

    def kernel_for(self, inputs: torch.Tensor) -> Function | None:
        """Returns what launches the kernel for such inputs; None if there is none, or it fails."""
        if self.is_replaced:
            return None
        if inputs.is_cuda:
            return self.cuda_kernel if _has_triton(inputs.device, inputs.dtype) else None
        if self._cpu is not None and inputs.is_cpu and inputs.dtype in _CPU_DTYPES:
            return _load_cpu(self._cpu)
        return None

    @property
    def cuda_kernel(self) -> Function | None:
        """What launches the kernel on CUDA, if there is one."""
        return None if self._cuda is None else _load(self._cuda)


@contextmanager
def by_plain_pytorch(*operations: Operation) -> Iterator[None]:
    """Computes operations without their kernels, which were not checked yet."""
    before = [one.is_replaced for one in operations]
    for one in operations:
        one.is_replaced = True
    try:
        yield
    finally:
        for one, was_replaced in zip(operations, before, strict=True):
            one.is_replaced = was_replaced


_CPU_DTYPES = frozenset({torch.bfloat16, torch.float32, torch.int32})


@cache
def _load(path: str) -> Function:
    module, function = path.split(":")
    launch: Function = getattr(import_module(module), function)
    return launch


@cache
def _load_cpu(path: str) -> Function | None:
    is_compiled = _load("optimist_worker.cpu_kernels.build:load")() is not None
    return _load(path) if is_compiled else None


@cache
def _has_triton(device: torch.device, dtype: torch.dtype) -> bool:
    """Its kernels need tensor cores of Ampere or later, and have no float64."""
    return (
        dtype != torch.float64
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )
