"""Weights of 8 and 4 bits, and how PyTorch's kernels want them."""

from typing import Literal, NamedTuple

import torch

from optimist_common.errors import SetupError
from optimist_worker.model.operations import Panels, make_rounded_panels

Bits = Literal[4, 8]

GROUP_SIZE = 32
"""Inputs that share a scale in a layer of 4 bits."""
INNER_TILES = 8
TINY = 1e-12


def round_outputs(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns int8 values of the weight's shape and float32 scales, `[out_features]`."""
    precise = weight.detach().float()
    scales = (precise.abs().amax(dim=1) / 127.0).clamp_min(TINY)
    return (precise / scales[:, None]).round_().to(torch.int8), scales


def round_groups(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds to the nearest of 16 evenly spaced values between the group's least and greatest.

    This is the layout of tinygemm as in gpt-fast and torchao's Int4WeightOnlyConfig: numbers from 0
    to 15, int32 of the weight's shape; and per group of inputs and output the step between two of
    these values and the value of number 8, bfloat16 `[num_groups, out_features, 2]`.
    """
    groups = weight.detach().float().reshape(len(weight), -1, GROUP_SIZE)
    least, greatest = groups.aminmax(dim=2)
    scales = ((greatest - least) / 15).clamp_min(TINY)
    steps = ((groups - least[..., None]) / scales[..., None]).round_().clamp_(0, 15)
    both = torch.stack([scales, least + 8 * scales], dim=2).transpose(0, 1).contiguous()
    return steps.flatten(1).to(torch.int32), both.to(torch.bfloat16)


def takes_int4(weight: torch.Tensor) -> bool:
    """Whether the kernel for 4 bits takes the weight's shape on its device."""
    rows, columns = weight.shape
    unit = 16 * INNER_TILES if weight.device.type == "cuda" else GROUP_SIZE
    return rows % 16 == 0 and columns % unit == 0


def pack_int4(steps: torch.Tensor) -> torch.Tensor:
    """Packs numbers from 0 to 15, int32 `[out_features, in_features]`, for the device's kernel.

    Raises SetupError if the device lacks it.
    """
    if not steps.is_cuda:
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(steps, 1)
    if torch.cuda.get_device_capability(steps.device) < (8, 0):
        raise SetupError(
            "--drafter-bits: 4 bits need a GPU of compute capability 8.0 or higher; use 8"
        )
    pairs = (steps[:, ::2] << 4 | steps[:, 1::2]).to(torch.uint8)
    return torch.ops.aten._convert_weight_to_int4pack(pairs, INNER_TILES)


class RoundedWeight(NamedTuple):
    """A matrix of 8 or 4 bits on the CPU, as the kernel takes it and as it is."""

    panels: Panels
    weight: torch.Tensor
    """What it stands for, bfloat16 `[out_features, in_features]`."""


def round_weight(weight: torch.Tensor, bits: Bits) -> RoundedWeight:
    """Rounds a matrix to 8 bits, by output, or to 4, by groups of inputs if 32 divides them."""
    if bits == 8 or weight.shape[1] % GROUP_SIZE:
        values, wide_scales = round_outputs(weight)
        scales = wide_scales.to(torch.bfloat16)
        restored = values.float() * scales.float()[:, None]
        panels = make_rounded_panels(values, scales[None], None)
        return RoundedWeight(panels, restored.to(torch.bfloat16))
    steps, both = round_groups(weight)
    groups = steps.reshape(len(steps), -1, GROUP_SIZE).float() - 8.0
    widths, zeros = both.float().transpose(0, 1)[..., None].unbind(2)
    restored = (groups * widths + zeros).flatten(1)
    panels = make_rounded_panels(steps.to(torch.int8), *both.unbind(2))
    return RoundedWeight(panels, restored.to(torch.bfloat16))
