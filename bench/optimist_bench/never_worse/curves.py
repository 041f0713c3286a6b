"""What passes cost by their tokens: the machines that the grid is computed for."""

from collections.abc import Mapping

import numpy as np

Curve = tuple[tuple[int, ...], tuple[int, ...]]
"""Tokens of passes, ascending, and their times in microseconds."""

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_GPU_SIZES = (1, 16, 64, 128, 256, 512, 1024, 2048)

CURVES: Mapping[str, Curve] = {
    # SmolLM2 in bfloat16 on two cores of an Intel Xeon with AVX-512.
    "cpu": (
        _SIZES,
        (15000, 16000, 18000, 23000, 30000, 45000, 80000, 140000, 260000, 520000, 1050000, 2150000),
    ),
    # Of docs/gpu.md, with graphs up to 1,024 tokens.
    "h100-1b": (_GPU_SIZES, (1750, 1950, 2220, 2660, 3620, 4760, 7400, 13500)),
    "h100-8b": (_GPU_SIZES, (6760, 7280, 7890, 8950, 13970, 19150, 33600, 67000)),
    # Each token costs as much as a pass: drafts have to be right one in two.
    "steep": (_SIZES, tuple(4000 + 4000 * size for size in _SIZES)),
}


def find_time(curve: Curve, num_tokens: int) -> float:
    """Returns the time of a pass in microseconds: a line between points and after the last."""
    sizes, times = curve
    if num_tokens > sizes[-1]:
        slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        return times[-1] + slope * (num_tokens - sizes[-1])
    return float(np.interp(num_tokens, sizes, times))
