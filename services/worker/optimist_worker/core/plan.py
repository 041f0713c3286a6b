"""What a scheduler asks of one step, and its result, as columns of plain numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from optimist_common.columns import Float32Column, Int32Column
from optimist_common.sampling import SamplingParams

MOST_WINDOW_NODES = 256
"""Nodes of one window."""

_NO_ROWS: Int32Column = np.frombuffer(b"", dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a worker holds, which every plan must keep to."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int


# Not frozen, as that takes several times as long to make.
@dataclass(slots=True)
class Admission:
    """A request that takes a slot."""

    slot: int
    request_id: str
    token_ids: Sequence[int] | Int32Column
    num_prompt_tokens: int
    sampling: SamplingParams
    cached_blocks: list[int] = field(default_factory=list)
    """Blocks that hold the first tokens' keys and values already."""
    max_length: int = 0
    """Length at which the request ends, in tokens; 0 means at the model's longest."""
    min_length: int = 0
    """Length below which no stop token ends the request, in tokens."""
    stop_token_ids: list[int] = field(default_factory=list)
    predicted_token_ids: Sequence[int] | Int32Column = ()
    """Of all predictions; a drafter may look drafts up in them."""


@dataclass(slots=True)
class WindowUpdate:
    """A tree of tokens to draft from, which replaces the window of its slot."""

    slot: int
    base: int
    """Output position (0 is the first generated token) of the nodes without a parent."""
    token_ids: Sequence[int] | Int32Column
    """`[num_nodes]`, likely ones first."""
    parents: list[int] = field(default_factory=list)
    """The parent of each node, before it in the list, or -1 for none, `[num_nodes]`; empty for a
    chain."""


class PlannedRow(NamedTuple):
    """A slot to run: known tokens to feed, most drafts after them, blocks it is given first."""

    slot: int
    num_known_tokens: int
    num_draft_tokens: int
    new_blocks: list[int]


class Plan(NamedTuple):
    """One step; its parts are applied in the order of the fields.

    The columns have one element per row, `[num_rows]`, but for `new_blocks`, which holds those of
    all rows one after the other, `[sum(num_new_blocks)]`.
    """

    sequence: int
    released_slots: Sequence[int] = ()
    admissions: Sequence[Admission] = ()
    windows: Sequence[WindowUpdate] = ()
    slots: Int32Column = _NO_ROWS
    num_known_tokens: Int32Column = _NO_ROWS
    num_draft_tokens: Int32Column = _NO_ROWS
    num_new_blocks: Int32Column = _NO_ROWS
    new_blocks: Int32Column = _NO_ROWS
    least_chance: float = 0.0
    """Chance below which a draft that is looked up is not worth its time; 0 if all are."""
    max_drafter_tokens: int | None = None
    """Most drafts of a row that a drafter with a model makes; None: as many as planned."""
    num_form_tokens: int = 0
    """How many drafts of rows with a grammar are not for their windows."""

    def rows(self) -> Iterator[PlannedRow]:
        """Goes through the rows."""
        blocks = self.new_blocks.tolist()
        first = 0
        for slot, num_known, num_drafts, num_new in zip(
            self.slots.tolist(),
            self.num_known_tokens.tolist(),
            self.num_draft_tokens.tolist(),
            self.num_new_blocks.tolist(),
            strict=True,
        ):
            yield PlannedRow(slot, num_known, num_drafts, blocks[first : first + num_new])
            first += num_new


@dataclass(frozen=True, slots=True, eq=False)
class RowLogprobs:
    """Log-probabilities of tokens of one row: of its prompt, then of the tokens that it emitted."""

    slot: int
    first_prompt_position: int
    """Position in the sequence of the first of the prompt's tokens."""
    num_prompt_tokens: int
    num_prompt_candidates: int
    """How many of the likeliest tokens are reported for each of the prompt's tokens."""
    num_candidates: int
    """The same for each emitted token."""
    logprobs: Float32Column
    """`[num_prompt_tokens + num_emitted_tokens]`; without the latter if they are not wanted."""
    candidate_token_ids: Int32Column
    """The likeliest tokens at each position, the likeliest first, one position after the other."""
    candidate_logprobs: Float32Column
    """Theirs."""


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What became of the rows, in the plan's order.

    The columns have one element per row, `[num_rows]`, but for `token_ids`, which holds the new
    tokens of all rows one after the other, `[sum(num_emitted_tokens)]`, and `accepted_nodes`.
    """

    sequence: int
    slots: Int32Column
    lengths: Int32Column
    """Verified lengths, prompt and output, in tokens."""
    num_emitted_tokens: Int32Column
    token_ids: Int32Column
    num_drafted_tokens: Int32Column
    num_accepted_tokens: Int32Column
    draft_sources: Int32Column
    """A DraftSource per row."""
    errors: dict[int, str]
    """Why rows failed, by slot."""
    num_tokens: int
    """Tokens that the pass was fed, drafts included."""
    draft_ns: int = 0
    """Time that the drafter took, in nanoseconds."""
    logprobs: Sequence[RowLogprobs] = ()
    """Of the rows whose requests want some."""
    window_nodes: Int32Column = field(default_factory=lambda: _NO_ROWS)
    """Node of its window that each row was at when it drafted, -1 for none; counts for rows whose
    drafts came from their window."""
    draft_positions: Int32Column = field(default_factory=lambda: _NO_ROWS)
    """Position in the predictions of each row's first draft, -1 if it was read elsewhere."""
    accepted_nodes: Int32Column = field(default_factory=lambda: _NO_ROWS)
    """Accepted nodes of all these rows, those of grammars left out."""
    num_form_drafted_tokens: Int32Column = field(default_factory=lambda: _NO_ROWS)
    """Of each row's drafts, those that its grammar has brought: the last ones."""
    num_form_accepted_tokens: Int32Column = field(default_factory=lambda: _NO_ROWS)
    """Of each row's accepted drafts, the same."""


class PlanError(ValueError):
    """A plan that breaks the contract; the text names the field."""
