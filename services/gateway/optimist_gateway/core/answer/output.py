"""What steps say of one request: its tokens, how likely they were, and its account."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, repeat, zip_longest

from optimist_common.drafts import DraftSource

MAX_COUNTED = 64
"""Passes with more accepted drafts are counted with those that have as many."""


class FinishReason(Enum):
    """The scheduler's reasons, and the stop string that only the gateway knows."""

    STOP = "stop"
    LENGTH = "length"
    STOP_STRING = "stop_string"
    REFUSED = "refused"
    OVERLOADED = "overloaded"
    ERROR = "error"
    ABORTED = "aborted"

    @property
    def is_failure(self) -> bool:
        """Returns whether the request has no complete answer."""
        return self not in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP_STRING)

    @property
    def api_name(self) -> str:
        """The value of `finish_reason` in an answer; only for reasons that are no failure."""
        return "length" if self is FinishReason.LENGTH else "stop"


@dataclass(frozen=True)
class Finished:
    """The end of a request and its account."""

    reason: FinishReason
    message: str = ""
    """What went wrong; for failures only."""
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    num_passes: int = 0
    """Forward passes that emitted tokens of the request."""
    num_tokens_by_source: Mapping[DraftSource, int] = field(default_factory=dict)
    """Tokens of the request by where they came from, without zeros."""
    num_drafted_tokens: int = 0
    """Drafts that were verified, accepted or not, trees with all their nodes."""
    queue_seconds: float = 0.0
    """Time for which the request waited for a slot."""
    num_cached_tokens: int = 0
    """Tokens of the prompt that were in the prefix cache."""
    retry_seconds: float | None = None
    """When a request that was refused for want of room may come again, if the scheduler says so."""
    is_whole: bool = True
    """Whether the account is of the whole request; not of one whose first tokens came from
    another scheduler."""


@dataclass(frozen=True)
class TokenLogprobs:
    """How likely one token was, and which would have been the likeliest at its position."""

    logprob: float
    """Natural logarithm of the model's probability of the token."""
    candidate_token_ids: list[int]
    """The likeliest tokens, the likeliest first, `[num_candidates]`."""
    candidate_logprobs: list[float]
    """Of these, `[num_candidates]`."""


@dataclass(frozen=True)
class StepLogprobs:
    """What one step says of how likely tokens of one request were."""

    first_prompt_position: int
    """Position in the prompt of the first of `prompt`; the others follow it."""
    prompt: list[TokenLogprobs]
    """Of tokens of the prompt, each once and in order, the first token of it never."""
    tokens: list[TokenLogprobs]
    """One for each new token of the step; empty if only those of the prompt are wanted."""


@dataclass(slots=True)
class StepOutput:
    """New tokens of one request, log-probabilities of its prompt, its end, or several of these.

    It is not changed once it is made: a frozen one would take several times as long to make.
    """

    token_ids: list[int]
    num_accepted_tokens: int = 0
    """How many of the tokens, from the front, were drafts."""
    draft_source: DraftSource = DraftSource.TARGET
    """Where these drafts came from."""
    finished: Finished | None = None
    logprobs: StepLogprobs | None = None
    """For requests that want some; without any new token if it is of the prompt alone."""
    prediction_positions: list[int] | None = None
    """For requests that want them: where each accepted draft is in all predictions, one after
    the other; -1 for what was read from none of them, `[num_accepted_tokens]`."""
    prompt_positions: list[int] | None = None
    """With these: where each accepted draft is in the prompt, counted from its end (1 for its
    last token); 0 for what was not read from it, `[num_accepted_tokens]`. None if none was."""
    received: float = 0.0
    """When it arrived, by `time.perf_counter`."""
    num_form_tokens: int = 0
    """How many of the accepted drafts, the last ones, are from the form of the answer, whatever
    `draft_source` says."""

    @property
    def num_base_tokens(self) -> int:
        """How many of the tokens, from the front, were drafts of `draft_source`."""
        return self.num_accepted_tokens - self.num_form_tokens


@dataclass(frozen=True)
class Usage:
    """What was consumed and what the predictions were worth."""

    prompt_tokens: int
    completion_tokens: int
    """Tokens of the answer; rejected predicted tokens are no part of it."""
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int | None
    """None if unknown: the scheduler gives no account of a request that the gateway ends."""
    num_passes: int
    """Forward passes that emitted tokens."""
    num_tokens_by_source: Mapping[DraftSource, int] = field(default_factory=dict)
    """Tokens of the answer by where they came from, without zeros."""
    cached_prompt_tokens: int = 0
    """Tokens of the prompt that were in the prefix cache."""
    num_drafted_tokens: int | None = None
    """Drafts that were verified; None if the scheduler gave no account."""
    accepted_length_histogram: Sequence[int] = ()
    """How many passes had 0, 1, 2, ... accepted drafts; at most `MAX_COUNTED` + 1 counts."""
    reasoning_tokens: int = 0
    """Tokens of the answer up to where the model has ended to think."""

    @property
    def num_accepted_tokens(self) -> int:
        """How many tokens of the answer were drafts."""
        return self.completion_tokens - self.num_tokens_by_source.get(DraftSource.TARGET, 0)

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the drafts that was accepted; None if there were none or nobody knows."""
        drafted = self.num_drafted_tokens
        return self.num_accepted_tokens / drafted if drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens of a pass; None without any pass."""
        return self.completion_tokens / self.num_passes if self.num_passes else None


def add_usages(usages: Sequence[Usage], num_answers: int) -> Usage:
    """Returns the account of so many answers to each prompt; a prompt is counted once."""
    by_source: Counter[DraftSource] = Counter()
    for usage in usages:
        by_source.update(usage.num_tokens_by_source)
    histograms = (usage.accepted_length_histogram for usage in usages)
    prompts = [usages[at : at + num_answers] for at in range(0, len(usages), num_answers)]
    return Usage(
        prompt_tokens=sum(answers[0].prompt_tokens for answers in prompts),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        accepted_prediction_tokens=sum(usage.accepted_prediction_tokens for usage in usages),
        rejected_prediction_tokens=_sum([one.rejected_prediction_tokens for one in usages]),
        num_passes=sum(usage.num_passes for usage in usages),
        num_tokens_by_source={source: by_source[source] for source in sorted(by_source)},
        # What one of the answers computed the others may have found in the cache.
        cached_prompt_tokens=sum(
            min(usage.cached_prompt_tokens for usage in answers) for answers in prompts
        ),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        num_drafted_tokens=_sum([usage.num_drafted_tokens for usage in usages]),
        accepted_length_histogram=[sum(counts) for counts in zip_longest(*histograms, fillvalue=0)],
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    """Returns the sum; None if one of the counts is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


Describe = Callable[[int], tuple[str, bytes]]
"""Returns the text and the bytes of a token."""

SMALLEST = -9999.0
"""In place of the logarithm of 0, which JSON cannot say; OpenAI's number for it."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token, how likely it was, and the likeliest ones at its position."""

    token_id: int
    text: str
    """The token alone, with U+FFFD for bytes that are no text."""
    token_bytes: bytes
    """Its bytes, also if they are but a part of a character."""
    logprob: float | None
    """Natural logarithm of the model's probability before sampling parameters change it; None for
    the first token of a prompt, which nothing precedes."""
    text_offset: int = 0
    """Where the token begins in the text of its choice, in characters."""
    top: tuple["TokenLogprob", ...] = ()
    """The likeliest tokens at this position, the likeliest first; their own `top` is empty."""


def token_logprob(
    token_id: int, logprobs: TokenLogprobs | None, text_offset: int, describe: Describe
) -> TokenLogprob:
    """Returns how likely a token was; without `logprobs` it is the first one of a prompt."""
    if logprobs is None:
        return TokenLogprob(token_id, *describe(token_id), None, text_offset)
    candidates = zip(logprobs.candidate_token_ids, logprobs.candidate_logprobs, strict=True)
    top = tuple(
        TokenLogprob(candidate, *describe(candidate), max(logprob, SMALLEST), text_offset)
        for candidate, logprob in candidates
    )
    logprob = max(logprobs.logprob, SMALLEST)
    return TokenLogprob(token_id, *describe(token_id), logprob, text_offset, top)


@dataclass(slots=True)
class LogprobReader:
    """Reads how likely the tokens of one answer were, step by step."""

    describe: Describe
    text_offset: int = 0
    """Where the next token begins in the text of the choice, in characters."""

    def read(
        self, output: StepOutput, token_ids: Sequence[int], lengths: Sequence[int]
    ) -> list[TokenLogprob]:
        """Returns how likely the tokens of a step that are part of the answer were.

        The lengths are how many characters each of them added to the decoded text, those that are
        not shown left out. Raises ValueError if the scheduler does not say it.
        """
        given = output.logprobs.tokens if output.logprobs is not None else []
        if len(given) < len(token_ids):
            raise ValueError("tokens came without their log-probabilities")
        read = []
        for token, logprobs, length in zip(
            token_ids, given, chain(lengths, repeat(0)), strict=False
        ):
            read.append(token_logprob(token, logprobs, self.text_offset, self.describe))
            self.text_offset += length
        return read
