"""What requests get from a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.values.arrays import Int32Array, Int64Array
from optimist_scheduler.core.values.logprobs import Logprobs

NUM_SOURCES = len(DraftSource)


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    REFUSED = "refused"
    OVERLOADED = "overloaded"
    ERROR = "error"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Finished:
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


class Ended(NamedTuple):
    """A request that is over, and whom to tell."""

    owner: int
    handle: int
    request_id: str
    finished: Finished


class ReportedLogprobs(NamedTuple):
    """How likely tokens of a request were, and whom to tell."""

    owner: int
    handle: int
    logprobs: Logprobs
    """Of the prompt's tokens, and of all that the step brings or none of them."""


class ReportedPositions(NamedTuple):
    """Where accepted drafts of a request were read from, and whom to tell."""

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
    _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, np.empty(0, np.int64), [], {}, []
)


class RejectionError(Exception):
    """A request that cannot be added; the message names the field."""

    def __init__(self, reason: FinishReason, message: str) -> None:
        super().__init__(message)
        self.finished = Finished(reason, message)
