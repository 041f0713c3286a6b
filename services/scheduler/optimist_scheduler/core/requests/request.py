"""One request: what is asked for, whether it can ever run, and what is known of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.base.values import (
    NUM_SOURCES,
    FinishReason,
    Int32Array,
    RejectionError,
)
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.following import (
    FIRST_PREDICTED_GAIN,
    NOT_FOLLOWED,
    find_first_gain,
)
from optimist_scheduler.core.windows.window import Window

MAX_REQUEST_ID_LENGTH = 256
MAX_PREDICTED_TOKENS = 262_144
"""Of all predictions of a request."""
MAX_PREDICTIONS = 16
MAX_CACHE_SALT_BYTES = 256
MAX_PRIORITY = 2**30
NO_SLOT = -1
LOSSES_TOGETHER = 2
"""Losses after which a request runs alone; one may be anything, as a machine that ends."""
LOSSES_AT_LAST_ALONE = 3
"""Losses that end a request if nothing else ran at the last one."""
MOST_LOSSES = 5
"""Losses that end a request in any case."""


@dataclass(frozen=True, slots=True)
class NewRequest:
    """What is asked for."""

    request_id: str
    prompt_token_ids: Sequence[int]
    max_tokens: int
    predicted_token_ids: Sequence[int] = ()
    """Of several predictions one after the other."""
    stop_token_ids: Sequence[int] = ()
    min_tokens: int = 0
    sampling: SamplingParams = field(default_factory=SamplingParams)
    sampling_message: Any = None
    """The same as it came: the worker is sent it, and nothing here looks into it."""
    priority: int = 0
    """The smaller, the sooner; 0 unless the policy is priority."""
    cache_salt: str = ""
    """Only requests of the same salt share cached blocks, and what is kept of predictions."""
    max_draft_tokens: int | None = None
    """Most drafts per pass; None for the scheduler's own limit."""
    num_predicted_tokens: Sequence[int] = ()
    """Tokens of each prediction; empty for one prediction."""
    wants_prediction_positions: bool = False
    """Whether the owner gets the positions of accepted drafts in the predictions."""
    output_token_ids: Sequence[int] = ()
    """Output that the owner has already: the request goes on after it."""
    is_followed: bool = False
    """Whether a proposer follows the request."""
    owner: int = 0
    """Who gets the output: a number of the caller."""
    handle: int = 0
    """The owner's number of the request."""


@dataclass(slots=True)
class Suspicion:
    """Keeps the losses of workers that a request may have caused: it was in a plan in flight.

    One that ends workers ends them at one length. It has not caused a loss if it gets past the
    tokens that were in flight then.
    """

    positions: list[int] = field(default_factory=list)
    """Of each loss, the length to which the plans in flight may have brought it, in tokens."""
    was_alone: bool = False
    """Whether no other request was in a plan in flight at the last loss."""

    @property
    def num_losses(self) -> int:
        """Losses that it may have caused, all at the same length."""
        return len(self.positions)

    def note_length(self, length: int) -> None:
        """Takes how long the request is; of losses up to there it is suspected no more."""
        self.positions = [position for position in self.positions if position > length]

    def note_loss(self, length: int, assumed_length: int, *, is_alone: bool) -> None:
        """Takes a loss, how long the request is, and what all in flight may have made of that."""
        self.note_length(length)
        # A prompt has to be computed to its end.
        self.positions.append(max(assumed_length, length + 1))
        self.was_alone = is_alone

    @property
    def must_run_alone(self) -> bool:
        """Whether the request is to be tried alone, so that a loss says something."""
        return self.num_losses >= LOSSES_TOGETHER

    @property
    def is_proven(self) -> bool:
        """Whether the request ends."""
        least = LOSSES_AT_LAST_ALONE if self.was_alone else MOST_LOSSES
        return self.num_losses >= least


@dataclass(slots=True, eq=False)
class Request:
    """One request, from add to end."""

    request_id: str
    owner: int
    handle: int
    token_ids: Int32Array
    """Prompt and verified output, of a request without a slot [num_tokens]."""
    num_prompt_tokens: int
    wanted_length: int
    """Length at which the request is to end, prompt and output, in tokens."""
    max_length: int
    """The same within what the worker can hold."""
    min_length: int
    """Length below which a stop token does not end the request, in tokens."""
    stop_token_ids: frozenset[int]
    sampling: SamplingParams
    sampling_message: Any
    """The same as it came, for the worker."""
    predicted_token_ids: Int32Array
    """Of all predictions [num_predicted_tokens]."""
    priority: int
    """The smaller, the sooner; 0 unless the policy is priority."""
    cache_salt: str
    max_draft_tokens: int
    """Most drafts per pass."""
    wants_prediction_positions: bool
    """Whether its owner gets the positions of accepted drafts in the predictions."""
    arrival: int = 0
    """Counts requests as they were added."""
    arrival_time: float = 0.0
    """When the request was added, in seconds."""
    is_overtaken: bool = False
    """Whether a request that was added later has been admitted before it."""
    is_promoted: bool = False
    """Whether the request goes before all others because it starved."""
    block_hashes: list[bytes] = field(default_factory=list)
    """Prefix hashes of the full blocks of its tokens, as far as they were needed."""
    window: Window | None = None
    """What is left of the last window that was set, from some position of the output on."""
    window_base: int = -1
    """Output tokens that were known to who made that window."""
    slot: int = NO_SLOT
    num_passes: int = 0
    """Forward passes that emitted tokens, before the present slot."""
    num_accepted_by_source: tuple[int, ...] = (0,) * NUM_SOURCES
    """Drafts that were kept, indexed by DraftSource, before the present slot."""
    prediction_marks: bytes = b""
    """What was drafted and kept of the prediction, before the present slot."""
    suspicion: Suspicion = field(default_factory=Suspicion)
    """Of being why workers were lost."""
    is_displaced: bool = False
    """Whether it ran when its worker was lost, and does not go on yet."""
    num_drafted_tokens: int = 0
    """Drafts that were verified, before the present slot."""
    num_reported_tokens: int = 0
    """Tokens of the prompt, after the first, whose log-probabilities were reported."""
    num_given_tokens: int = 0
    """Output that the owner had when it added the request; not part of the account."""
    num_cached_tokens: int | None = None
    """Tokens of the prompt that the prefix cache held when the request first got a slot; None
    before that."""
    gain: int = NOT_FOLLOWED
    """What following it brings, before the present slot; see `following.py`."""
    num_observed_tokens: int = 0
    """Prompt and output tokens that proposers were sent, before the present slot."""

    @property
    def num_predicted_tokens(self) -> int:
        """Of all predictions."""
        return len(self.predicted_token_ids)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of its prompt are still to be reported."""
        return (
            self.sampling.num_prompt_logprobs is not None
            and self.num_reported_tokens < self.num_prompt_tokens - 1
        )

    @property
    def order(self) -> tuple[bool, int, int]:
        """Sorts requests: the smallest goes first."""
        return not self.is_promoted, self.priority, self.arrival

    @property
    def is_followed(self) -> bool:
        """Whether a proposer follows it."""
        return self.gain != NOT_FOLLOWED

    @property
    def uses_lookup(self) -> bool:
        """Whether a lookup is of use: in a prediction, or for want of a proposer."""
        return not self.is_followed or self.num_predicted_tokens > 0


def build_request(
    new: NewRequest, config: EngineConfig, predicted_gain: int = FIRST_PREDICTED_GAIN
) -> Request:
    """Returns the request; raises RejectionError (REFUSED) if it can never run."""
    if fault := next(_find_faults(new, config), None):
        raise RejectionError(FinishReason.REFUSED, fault)
    num_prompt_tokens, num_output_tokens = len(new.prompt_token_ids), len(new.output_token_ids)
    return Request(
        request_id=new.request_id,
        owner=new.owner,
        handle=new.handle,
        token_ids=np.concatenate(
            [np.asarray(each, np.int32) for each in (new.prompt_token_ids, new.output_token_ids)]
        ),
        num_prompt_tokens=num_prompt_tokens,
        wanted_length=num_prompt_tokens + new.max_tokens,
        max_length=min(num_prompt_tokens + new.max_tokens, config.max_length),
        min_length=num_prompt_tokens + new.min_tokens,
        stop_token_ids=frozenset(new.stop_token_ids),
        sampling=new.sampling,
        sampling_message=new.sampling_message,
        predicted_token_ids=np.asarray(new.predicted_token_ids, np.int32),
        priority=new.priority,
        cache_salt=new.cache_salt,
        max_draft_tokens=config.num_speculative_tokens
        if new.max_draft_tokens is None
        else min(new.max_draft_tokens, config.num_speculative_tokens),
        wants_prediction_positions=new.wants_prediction_positions,
        num_given_tokens=num_output_tokens,
        # Who has output has had the prompt reported before.
        num_reported_tokens=num_prompt_tokens - 1 if num_output_tokens else 0,
        gain=find_first_gain(
            len(new.predicted_token_ids), predicted_gain, is_followed=new.is_followed
        ),
        num_observed_tokens=num_prompt_tokens + num_output_tokens,
    )


def _find_faults(new: NewRequest, config: EngineConfig) -> Iterator[str]:
    """Iterates over what is wrong with a request; each goes by what those before have not found."""
    num_prompt_tokens, num_predicted = len(new.prompt_token_ids), len(new.predicted_token_ids)
    if not 0 < len(new.request_id) <= MAX_REQUEST_ID_LENGTH:
        bounds = f"1 to {MAX_REQUEST_ID_LENGTH} characters"
        yield f"request_id: must have {bounds}, not {len(new.request_id)}"
    if num_prompt_tokens == 0:
        yield "prompt_token_ids: must not be empty"
    if fault := find_length_fault(num_prompt_tokens + len(new.output_token_ids), config):
        yield fault
    for name, least in (("max_tokens", 1), ("min_tokens", 0), ("max_draft_tokens", 0)):
        if (value := getattr(new, name)) is not None and value < least:
            yield f"{name}: must be at least {least}, not {value}"
    if new.max_tokens <= len(new.output_token_ids):
        bound = f"must be fewer than max_tokens ({new.max_tokens})"
        yield f"output_token_ids: {bound}, not {len(new.output_token_ids)}"
    if num_predicted > MAX_PREDICTED_TOKENS:
        bound = f"must be at most {MAX_PREDICTED_TOKENS} tokens"
        yield f"predicted_token_ids: {bound}, not {num_predicted}"
    if fault := _find_counts_fault(new.num_predicted_tokens, num_predicted):
        yield f"num_predicted_tokens: {fault}"
    yield from _find_value_faults(new, config)


def _find_value_faults(new: NewRequest, config: EngineConfig) -> Iterator[str]:
    if abs(new.priority) > MAX_PRIORITY:
        yield f"priority: must be from -{MAX_PRIORITY} to {MAX_PRIORITY}, not {new.priority}"
    if new.priority and config.policy != "priority":
        yield f"priority: must be 0 with the policy {config.policy}, not {new.priority}"
    if len(new.cache_salt.encode()) > MAX_CACHE_SALT_BYTES:
        yield f"cache_salt: must be at most {MAX_CACHE_SALT_BYTES} bytes"
    for name in ("prompt_token_ids", "predicted_token_ids", "stop_token_ids", "output_token_ids"):
        if not _in_vocabulary(getattr(new, name), config.vocab_size):
            yield f"{name}: must be from 0 to {config.vocab_size - 1}"
    if fault := new.sampling.fault(config.vocab_size):
        yield f"sampling.{fault}"


def _find_counts_fault(counts: Sequence[int], num_tokens: int) -> str | None:
    """Returns why predictions cannot have so many tokens each; None if they can."""
    if len(counts) > MAX_PREDICTIONS:
        return f"must be at most {MAX_PREDICTIONS}, not {len(counts)}"
    if any(count < 1 for count in counts):
        return f"each must be at least 1, not {min(counts)}"
    if counts and sum(counts) != num_tokens:
        return f"must add up to the {num_tokens} predicted_token_ids, not to {sum(counts)}"
    return None


def find_length_fault(num_tokens: int, config: EngineConfig) -> str | None:
    """Returns why a prompt of `num_tokens` leaves no room for one more token; None if it does."""
    for longest, where in (
        (config.max_model_len, "this model"),
        (config.kv_capacity_tokens, "the KV memory of the worker"),
    ):
        if num_tokens >= longest:
            bound = f"must be at most {longest - 1} tokens for {where}"
            return f"prompt_token_ids: {bound}, not {num_tokens}"
    return None


def _in_vocabulary(token_ids: Sequence[int], vocab_size: int) -> bool:
    if len(token_ids) == 0:
        return True
    column = np.asarray(token_ids)
    return bool(column.min() >= 0 and column.max() < vocab_size)
