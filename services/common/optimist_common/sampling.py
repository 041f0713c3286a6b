"""How the target's logits become a token, as plain values."""

import math
from dataclasses import dataclass, field
from typing import Final

MAX_LOGPROBS = 20
"""Most of the likeliest tokens at one position that a request may ask for."""

# The smallest number above 0, for bounds that exclude it.
_ABOVE_ZERO = math.ulp(0.0)
_IN_LOGPROBS = f"in 0 to {MAX_LOGPROBS}"

MAX_GRAMMAR_BYTES: Final = 384 * 1024
"""A plan, which may have 64 of them beside prompts, has to fit into a message."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """A request's sampling parameters; the defaults are greedy and change nothing."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    grammar: str = ""
    """What the output has to follow, in llguidance's Lark dialect; empty for none."""
    num_logprobs: int | None = None
    """Asks for the log-probability of each output token and of as many of the likeliest ones at its
    position, all as the model says and before anything above; None for none."""
    num_prompt_logprobs: int | None = None
    """The same for the tokens of the prompt, from the second one on."""

    @property
    def penalizes(self) -> bool:
        """Whether logits depend on the tokens so far."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return penalties != (1.0, 0.0, 0.0)

    @property
    def takes_argmax(self) -> bool:
        """Whether the token is simply the one with the largest logit of the model."""
        return not (self.temperature or self.penalizes or self.logit_bias or self.grammar)

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities are wanted, of the output or of the prompt."""
        return self.num_logprobs is not None or self.num_prompt_logprobs is not None

    def fault(self, vocab_size: int) -> str | None:
        """Returns what is wrong with the parameters, naming the field, or None."""
        checks = (
            ("temperature", self.temperature, 0.0, math.inf, "at least 0"),
            ("top_k", self.top_k, 0, math.inf, "at least 0"),
            ("top_p", self.top_p, _ABOVE_ZERO, 1.0, "in (0, 1]"),
            ("min_p", self.min_p, 0.0, 1.0, "in [0, 1]"),
            ("repetition_penalty", self.repetition_penalty, _ABOVE_ZERO, math.inf, "above 0"),
            ("presence_penalty", self.presence_penalty, -math.inf, math.inf, "a number"),
            ("frequency_penalty", self.frequency_penalty, -math.inf, math.inf, "a number"),
            ("num_logprobs", self.num_logprobs or 0, 0, MAX_LOGPROBS, _IN_LOGPROBS),
            ("num_prompt_logprobs", self.num_prompt_logprobs or 0, 0, MAX_LOGPROBS, _IN_LOGPROBS),
        )
        for name, value, low, high, wanted in checks:
            if not math.isfinite(value) or not low <= value <= high:
                return f"{name} must be {wanted}, not {value:g}"
        for token_id, bias in self.logit_bias.items():
            if not 0 <= token_id < vocab_size:
                return f"logit_bias: token id {token_id} is not in the vocabulary ({vocab_size})"
            if math.isnan(bias) or bias == math.inf:
                return f"logit_bias of token id {token_id} must be a number, not {bias:g}"
        size = len(self.grammar.encode("utf-8", "surrogatepass"))
        if size > MAX_GRAMMAR_BYTES:
            return f"grammar must be at most {MAX_GRAMMAR_BYTES} bytes, not {size}"
        return None
