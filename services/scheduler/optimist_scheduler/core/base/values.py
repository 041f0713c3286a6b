"""Columns, outputs and counters: values that everything else is made of."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optimist_common.drafts import DraftSource

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
SlotArray = npt.NDArray[np.integer]
"""Slots: of int64 in the state and in plans, as numpy takes several times as long to index by
others."""
BoolArray = npt.NDArray[np.bool_]
Float32Array = npt.NDArray[np.float32]
FloatArray = npt.NDArray[np.float64]

NUM_SOURCES = len(DraftSource)


def find_first(numbers: Int32Array, kept: Int32Array) -> BoolArray:
    """Returns which of so many elements of each row are the first ones that are kept."""
    index = count_up(np.zeros_like(numbers), numbers)
    is_kept: BoolArray = index < np.repeat(kept, numbers)
    return is_kept


def count_up(first: Int32Array, numbers: Int32Array) -> Int64Array:
    """Returns `numbers` integers of each row from its `first` on, row after row [sum(numbers)]."""
    # Otherwise numpy converts them each time.
    counts = numbers.astype(np.int64)
    before = np.add.accumulate(counts) - counts
    counted: Int64Array = np.arange(np.add.reduce(counts)) + (first - before).repeat(counts)
    return counted


@dataclass(frozen=True, slots=True, eq=False)
class Logprobs:
    """Log-probabilities: first of prompt tokens that follow one another, then of new tokens."""

    first_prompt_position: int
    """Position in the sequence of the first of the prompt tokens."""
    num_prompt_tokens: int
    num_prompt_candidates: int
    """Likeliest tokens that are reported at the position of each prompt token."""
    num_candidates: int
    """The same at the position of each new token."""
    logprobs: Float32Array
    """Of each token [num_prompt_tokens + num_tokens]; of the prompt's alone if no others are
    wanted."""
    candidate_token_ids: Int32Array
    """The likeliest tokens, position after position
    [num_prompt_tokens * num_prompt_candidates + num_tokens * num_candidates]."""
    candidate_logprobs: Float32Array
    """Theirs."""

    @property
    def num_tokens(self) -> int:
        """New tokens that are reported."""
        return len(self.logprobs) - self.num_prompt_tokens

    @property
    def end(self) -> int:
        """Position after the last of the prompt tokens."""
        return self.first_prompt_position + self.num_prompt_tokens

    def cut(self, num_skipped: int, num_kept: int) -> "Logprobs":
        """Returns the same without what is not delivered."""
        if not num_skipped and num_kept >= self.num_tokens:
            return self
        num_kept = min(num_kept, self.num_tokens)
        first = num_skipped * self.num_prompt_candidates
        end = self.num_prompt_tokens * self.num_prompt_candidates + num_kept * self.num_candidates
        return Logprobs(
            self.first_prompt_position + num_skipped,
            self.num_prompt_tokens - num_skipped,
            self.num_prompt_candidates,
            self.num_candidates,
            self.logprobs[num_skipped : self.num_prompt_tokens + num_kept],
            self.candidate_token_ids[first:end],
            self.candidate_logprobs[first:end],
        )


def find_logprobs_fault(
    reported: Logprobs, num_emitted: int, num_prompt_tokens: int, vocab_size: int
) -> str | None:
    """Returns why they cannot be of a row; None if they can."""
    number, widths = (
        reported.num_prompt_tokens,
        (reported.num_prompt_candidates, reported.num_candidates),
    )
    if number < 0 or min(widths) < 0 or max(widths) > vocab_size:
        return (
            f"logprobs: {number} prompt tokens with {widths[0]} candidates, {widths[1]} of others"
        )
    if number and not 0 < reported.first_prompt_position <= num_prompt_tokens - number:
        first, last = reported.first_prompt_position, reported.end - 1
        return f"logprobs: positions {first} to {last} of the prompt"
    if reported.num_tokens not in (0, num_emitted):
        return f"logprobs: {len(reported.logprobs)} of {number} and {num_emitted} tokens"
    num_candidates = number * widths[0] + reported.num_tokens * widths[1]
    if not len(reported.candidate_token_ids) == len(reported.candidate_logprobs) == num_candidates:
        return f"candidate_token_ids, candidate_logprobs: not {num_candidates}"
    ids = reported.candidate_token_ids
    # Negative numbers are large without their sign.
    if len(ids) and int(ids.view(np.uint32).max()) >= vocab_size:
        return f"candidate_token_ids: not from 0 to {vocab_size - 1}"
    if np.isnan(reported.logprobs).any() or np.isnan(reported.candidate_logprobs).any():
        return "logprobs: not all are numbers"
    return None


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    REFUSED = "refused"
    OVERLOADED = "overloaded"
    ERROR = "error"
    ABORTED = "aborted"


class Finished(NamedTuple):
    """The end of a request and its account."""

    reason: FinishReason
    message: str = ""
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    num_passes: int = 0
    num_tokens_by_source: tuple[int, ...] = (0,) * NUM_SOURCES
    """Tokens that were delivered, by where they came from, indexed by DraftSource."""
    num_drafted_tokens: int = 0
    """Drafts that were verified, of trees all nodes."""
    num_cached_tokens: int = 0
    """Tokens of the prompt that the prefix cache held when the request first got a slot."""
    retry_seconds: float = 0.0
    """When one that was refused as too much may come again; 0 if that is not known."""


class Ended(NamedTuple):
    """A request that is over, and who is to know."""

    owner: int
    handle: int
    request_id: str
    finished: Finished


class ReportedLogprobs(NamedTuple):
    """How likely tokens of a request were, and who is to know."""

    owner: int
    handle: int
    logprobs: Logprobs
    """Of the prompt's tokens, and of all that the step brings or none of them."""


class ReportedPositions(NamedTuple):
    """Where accepted drafts of a request were read from, and who is to know."""

    owner: int
    handle: int
    positions: Int32Array
    """See `Window.positions` [num_accepted_tokens]."""


@dataclass(slots=True)
class StepOutputs:
    """The new tokens of one step as columns; rows without a new token are left out."""

    owners: Int32Array
    """Who added the request [num_rows]."""
    handles: Int32Array
    """The owner's number of the request [num_rows]."""
    num_tokens: Int32Array
    """New tokens per row, at least 1."""
    token_ids: Int32Array
    """The new tokens, row after row [sum(num_tokens)]."""
    num_accepted_tokens: Int32Array
    """How many of a row's tokens, from the front, were drafts."""
    draft_sources: Int32Array
    """Where each row's drafts came from, a DraftSource."""
    num_form_tokens: Int32Array
    """How many of a row's accepted drafts, the last ones, are from the form of its answer."""
    observed_rows: Int64Array
    """Rows of requests that go on and whose tokens proposers are sent now."""
    observed_request_ids: list[str]
    earlier_token_ids: dict[int, list[int]]
    """What such rows got in earlier steps and proposers were not sent, by row."""
    ended: list[Ended]
    """Requests that ended with this step; their last tokens are in the columns."""
    logprobs: Sequence[ReportedLogprobs] = ()
    """For requests that want some; those of a prompt may come before any token."""
    positions: Sequence[ReportedPositions] = ()
    """For requests that want some, of the rows with an accepted draft."""

    @property
    def observed(self) -> list[tuple[str, list[int]]]:
        """What proposers are sent, by request id: all tokens that they were not sent before."""
        if len(self.observed_rows) == 0:
            return []
        tokens, ends = self.token_ids.tolist(), np.cumsum(self.num_tokens)
        starts = (ends - self.num_tokens)[self.observed_rows].tolist()
        return [
            (request_id, self.earlier_token_ids.get(row, []) + tokens[start:end])
            for request_id, row, start, end in zip(
                self.observed_request_ids,
                self.observed_rows.tolist(),
                starts,
                ends[self.observed_rows].tolist(),
                strict=True,
            )
        ]


_NONE: Int32Array = np.empty(0, np.int32)
NO_OUTPUTS = StepOutputs(
    _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, np.empty(0, np.int64), [], {}, []
)


class RejectionError(Exception):
    """A request that cannot be added; the message names the field."""

    def __init__(self, reason: FinishReason, message: str, retry_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.finished = Finished(reason, message, retry_seconds=retry_seconds)


@dataclass(slots=True)
class SchedulerStats:
    """Totals since the start; they outlive the worker."""

    num_plans: int = 0
    num_results: int = 0
    """Results that were settled."""
    num_prescheduled: int = 0
    """Decisions that were computed ahead of a result and kept."""
    num_preschedule_hits: int = 0
    """Of them, sent as they were."""
    num_preschedule_repairs: int = 0
    """Of them, sent with some rows dropped, computed again or added."""
    preschedule_discards: Counter[str] = field(default_factory=Counter)
    """Decisions computed ahead and thrown away, by reason."""
    num_prescheduled_rows: int = 0
    """Rows of decisions that were sent, hits and repairs."""
    num_dropped_rows: int = 0
    """Of them, rows whose request was over."""
    num_recomputed_rows: int = 0
    """Of them, rows that were computed again."""
    num_added_rows: int = 0
    """Rows of requests that were admitted by a repair."""
    num_preemptions: int = 0
    num_starved: int = 0
    """Requests that went first because later ones had overtaken them for too long."""
    num_rested: int = 0
    """Times a request that was followed in vain came to rest."""
    num_woken: int = 0
    """Times a window woke one."""
    num_prefix_queries: int = 0
    """Tokens of admitted requests that were looked up in the prefix cache."""
    num_prefix_hits: int = 0
    """Of them, tokens that it held."""
