"""How the target's logits become a token, as plain values."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request; the worker applies them."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias_token_ids: tuple[int, ...] = ()
    logit_bias_values: tuple[float, ...] = ()


def find_fault(sampling: SamplingParams, vocab_size: int) -> str | None:
    """Returns what is wrong with the parameters, beginning with the field's name; None if nothing.

    Args:
        sampling: The parameters.
        vocab_size: Number of entries of the output vocabulary.
    """
    bounds = (
        ("temperature", sampling.temperature, 0.0, math.inf),
        ("top_k", sampling.top_k, 0, math.inf),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("repetition_penalty", sampling.repetition_penalty, 0.0, math.inf),
        ("presence_penalty", sampling.presence_penalty, -math.inf, math.inf),
        ("frequency_penalty", sampling.frequency_penalty, -math.inf, math.inf),
    )
    for name, value, low, high in bounds:
        if not math.isfinite(value):
            return f"sampling.{name}: must be a finite number, not {value}"
        if not low <= value <= high:
            limits = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            return f"sampling.{name}: must be {limits}, not {value:g}"
    token_ids, values = sampling.logit_bias_token_ids, sampling.logit_bias_values
    if len(token_ids) != len(values):
        return f"sampling.logit_bias_values: {len(values)} values for {len(token_ids)} tokens"
    if any(not 0 <= token_id < vocab_size for token_id in token_ids):
        return f"sampling.logit_bias_token_ids: must be from 0 to {vocab_size - 1}"
    if not all(map(math.isfinite, values)):
        return "sampling.logit_bias_values: must be finite numbers"
    return None
