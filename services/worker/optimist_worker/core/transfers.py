"""Copies between host and device that the host does not wait for."""

import torch


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
