"""Rotary parameters of a GGUF file, as transformers names them."""

import math
from typing import Any

import numpy
from gguf import dequantize
from numpy.typing import NDArray

from optimist_worker.conversion.keys import Keys

FACTORS = "rope_freqs.weight"
_DEFAULT_BASE = 10000.0
# The file has float32.
_TOLERANCE = 1e-5
_USUAL_FACTORS = (8.0, 32.0, 2.0, 4.0, 16.0, 64.0)

_Floats = NDArray[numpy.float64]


def read_rotary(keys: Keys, head_dim: int, context_length: int) -> dict[str, Any]:
    """Returns the rotary parameters of layers with full attention.

    Raises SetupError for scaling or factors that transformers does not compute.
    """
    base = keys.take("rope.freq_base", _DEFAULT_BASE)
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    width = keys.take("rope.dimension_count", head_dim)
    if width != head_dim:
        parameters["partial_rotary_factor"] = width / head_dim
    # A file of before 2024 has the factor alone.
    kind = keys.take("rope.scaling.type", "linear")
    old = keys.take("rope.scale_linear", 0.0)
    factor = keys.take("rope.scaling.factor", old) or 1.0
    scaling = FACTORS in keys.file.tensors
    if kind == "yarn" and not scaling:
        return parameters | _read_yarn(keys, factor, context_length)
    if kind not in ("none", "linear") or (scaling and factor != 1.0):
        raise keys.file.refusal(f"its rotary scaling ({kind}) is not read")
    if scaling:
        return parameters | _read_factors(keys, base, width)
    if kind == "linear" and factor != 1.0:
        parameters |= {"rope_type": "linear", "factor": factor}
    return parameters


def _read_yarn(keys: Keys, factor: float, context_length: int) -> dict[str, Any]:
    if keys.take("rope.scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        raise keys.file.refusal("it extrapolates by another share than YaRN does")
    attention = keys.take("rope.scaling.attn_factor", 1.0)
    # llama.cpp puts another value in the place of this one.
    keys.take("rope.scaling.yarn_attn_factor")
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": keys.take(
            "rope.scaling.original_context_length", context_length
        ),
        "beta_fast": keys.take("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": keys.take("rope.scaling.yarn_beta_slow", 1.0),
        "attention_factor": attention * (0.1 * math.log(factor) + 1.0),
    }


def _read_factors(keys: Keys, base: float, width: int) -> dict[str, Any]:
    """Returns parameters of Llama 3.1's scaling that give the factors of the file.

    It stretches long wavelengths by one factor, short ones not, and those between by a line in
    the inverse wavelength. Raises SetupError if there are none.
    """
    stored = keys.file.tensors[FACTORS]
    factors = dequantize(stored.data, stored.tensor_type).astype(numpy.float64).ravel()
    # In waves a token.
    frequencies = base ** -(numpy.arange(0, width, 2) / width) / (2 * math.pi)
    if factors.shape != frequencies.shape or (factors < 1.0 - _TOLERANCE).any():
        raise keys.file.refusal(f"{FACTORS} has no rotary factors of Llama 3.1")
    if (factors <= 1.0 + _TOLERANCE).all():
        return {}
    # The longest wavelength may be one of those between.
    for factor in (float(factors.max()), *_USUAL_FACTORS):
        for high, original in _candidates(factors, frequencies, factor):
            if numpy.allclose(
                _factors(frequencies, factor, high, original), factors, rtol=_TOLERANCE
            ):
                return {
                    "rope_type": "llama3",
                    "factor": factor,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": high,
                    "original_max_position_embeddings": original,
                }
    raise keys.file.refusal(f"{FACTORS} has no rotary factors of Llama 3.1")


def _factors(frequencies: _Floats, factor: float, high: float, original: int) -> _Floats:
    """Returns what Llama 3.1's scaling divides frequencies by, for a lower factor of 1."""
    # How many wavelengths the original length has, from 1 to `high` as a share.
    share = numpy.clip((original * frequencies - 1.0) / (high - 1.0), 0.0, 1.0)
    return 1.0 / ((1.0 - share) / factor + share)


def _candidates(factors: _Floats, frequencies: _Floats, factor: float) -> list[tuple[float, int]]:
    """Returns what the upper factor and the original length may be."""
    usual = [(4.0, 2**exponent) for exponent in (13, *range(3, 13), *range(14, 21))]
    between = (factors > 1.0 + _TOLERANCE) & (factors < factor * (1.0 - _TOLERANCE))
    if between.sum() < 2:
        return usual
    shares = (1.0 / factors[between] - 1.0 / factor) / (1.0 - 1.0 / factor)
    slope, offset = numpy.polyfit(frequencies[between], shares, 1)
    if offset >= 0:
        return usual
    high = 1.0 - 1.0 / offset
    return [*usual, (round(high, 3), round(slope * (high - 1.0)))]
