"""What the server answers, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PredictionPlace:
    """A span of one of the predictions."""

    index: int
    """Which of the predictions, from 0."""
    start: int
    """Where it begins: in characters for a text, in tokens for tokens."""
    end: int
    """Where it ends, exclusive."""


@dataclass(frozen=True)
class PromptPlace:
    """A span of the prompt."""

    message: int | None
    """Which message of a chat, from 0; None where it stands in no message's content."""
    start: int
    """Where it begins: in characters of the message's content or the text, or in tokens."""
    end: int
    """Where it ends, exclusive."""
    is_in_tokens: bool = False
    """Whether it is counted in tokens: if the prompt was given so, and in a chat for what the chat
    template adds."""


@dataclass(frozen=True)
class Segment:
    """Text that came from one source."""

    text: str
    num_tokens: int
    """0 if the tokens were reported before and only their text comes later."""
    source: str
    """`prediction`, `ngram`, `draft_model` and so on, or `target`: the model itself."""
    prediction: PredictionPlace | None = None
    """Where it stands in the predictions, if that is known."""
    run: int = 0
    """Number of these tokens in their answer; text that was held back has the same one."""
    prompt: PromptPlace | None = None
    """Where it stands in the prompt, if it was read from there."""


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of one token at its position."""

    token_id: int
    text: str
    token_bytes: bytes
    logprob: float
    """Natural logarithm, of the model's own distribution."""
    top: tuple["TokenLogprob", ...] = ()
    """The likeliest tokens at this position, the likeliest first."""


@dataclass(frozen=True)
class Step:
    """What one forward pass adds to one of the answers."""

    index: int
    """Which of the answers, from 0."""
    text: str
    """May lag behind the tokens by an unfinished character or a possible stop string."""
    token_ids: tuple[int, ...]
    num_accepted_tokens: int
    """How many of the tokens, from the front, were drafts."""
    source: str
    """Where these drafts came from; `target` if there are none."""
    segments: tuple[Segment, ...] = ()
    """Set with `include_provenance`; their texts join to `text`."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Set with `num_logprobs`, one for each token."""
    finish_reason: str | None = None
    """`stop` or `length` with the last step of an answer."""


@dataclass(frozen=True)
class Usage:
    """What was consumed, all answers together."""

    prompt_tokens: int
    completion_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int | None
    num_passes: int
    """Forward passes that brought tokens."""
    tokens_by_source: Mapping[str, int] = field(default_factory=dict)
    cached_prompt_tokens: int = 0
    """Tokens of the prompt that were in the prefix cache."""


@dataclass(frozen=True)
class Speculation:
    """What speculation was worth, all answers together."""

    num_passes: int
    num_drafted_tokens: int | None
    """None if the scheduler did not say."""
    num_accepted_tokens: int
    acceptance_rate: float | None
    mean_accepted_length: float | None
    """New tokens of a pass, the model's own included."""
    accepted_length_histogram: tuple[int, ...]
    """Passes with 0, 1, 2, ... accepted drafts."""


@dataclass(frozen=True)
class Answer:
    """One whole answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    segments: tuple[Segment, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Result:
    """All answers to a request and its account."""

    request_id: str
    model: str
    answers: tuple[Answer, ...]
    usage: Usage
    speculation: Speculation | None = None
    """Set with `include_speculation`."""

    @property
    def text(self) -> str:
        """The text of the first answer."""
        return self.answers[0].text

    @property
    def outputs(self) -> tuple[Answer, ...]:
        """The answers, by the name that vLLM's users know."""
        return self.answers


@dataclass(frozen=True)
class Model:
    """A model that is served."""

    name: str
    max_model_len: int
    """Longest sequence, prompt and answer together, in tokens."""
    vocab_size: int
