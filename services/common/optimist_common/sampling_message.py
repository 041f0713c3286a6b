"""Sampling parameters between messages and plain values."""

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from typing import Any, Literal

import numpy.typing as npt

from optimist.common.v1 import sampling_pb2
from optimist_common.columns import floats_from_bytes, floats_to_bytes, from_bytes, to_bytes
from optimist_common.sampling import SamplingParams

_NAMES = tuple(one.name for one in fields(SamplingParams) if one.name != "logit_bias")
"""Fields that are the same in a message."""
_OPTIONAL: tuple[Literal["num_logprobs", "num_prompt_logprobs"], ...] = (
    "num_logprobs",
    "num_prompt_logprobs",
)
NUM_KEPT = 64
"""Parameters that are kept as they were read: those of most requests are the same."""
_ONE_BY_DEFAULT = ("top_p", "repetition_penalty")
"""Numbers that arrive as 0 if they are not set."""


def read_sampling(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """Reads a message; raises ValueError, naming the field, if a column is none."""
    return _read(message.SerializeToString())


@lru_cache(maxsize=NUM_KEPT)
def _read(data: bytes) -> SamplingParams:
    message = sampling_pb2.SamplingParams.FromString(data)
    token_ids = _column("logit_bias_token_ids", message, from_bytes, "int32")
    biases = _column("logit_bias_values", message, floats_from_bytes, "float32")
    if len(biases) != len(token_ids):
        raise ValueError(
            f"sampling.logit_bias_values: {len(biases)} values for {len(token_ids)} token ids"
        )
    values = {name: getattr(message, name) for name in _NAMES}
    values |= {name: None for name in _OPTIONAL if not message.HasField(name)}
    values |= {name: 1.0 for name in _ONE_BY_DEFAULT if not values[name]}
    return SamplingParams(**values, logit_bias=dict(zip(token_ids, biases, strict=True)))


def write_sampling(params: SamplingParams) -> sampling_pb2.SamplingParams:
    """Writes a message."""
    return sampling_pb2.SamplingParams(
        **{name: getattr(params, name) for name in _NAMES},
        logit_bias_token_ids=to_bytes(list(params.logit_bias)),
        logit_bias_values=floats_to_bytes(list(params.logit_bias.values())),
    )


def _column(
    name: str,
    message: sampling_pb2.SamplingParams,
    read: Callable[[bytes], npt.NDArray[Any]],
    kind: str,
) -> list[Any]:
    data: bytes = getattr(message, name)
    try:
        column: list[Any] = read(data).tolist()
    except ValueError:
        raise ValueError(f"sampling.{name}: {len(data)} bytes are no {kind} column") from None
    return column
