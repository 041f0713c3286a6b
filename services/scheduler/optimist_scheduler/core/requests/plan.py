"""A plan: what is sent, what is assumed meanwhile, and what comes back."""

from dataclasses import dataclass, field

import numpy as np

from optimist_scheduler.core.base.values import Int32Array, Logprobs, SlotArray
from optimist_scheduler.core.requests.request import NO_SLOT, Request
from optimist_scheduler.core.windows.window import Window

NO_SLOTS: SlotArray = np.empty(0, np.int64)
_NO_NODES: Int32Array = np.empty(0, np.int32)


@dataclass(slots=True)
class Admission:
    """A waiting request for which there are a slot and blocks, and its first row if it gets one."""

    request: Request
    cached_blocks: Int32Array
    """Blocks that hold its first tokens' KV already; the beginning of the block table."""
    num_blocks: int
    """Free blocks that it takes, cached ones included."""
    num_left_tokens: int
    """Known tokens that are not cached."""
    num_known_tokens: int = 0
    num_draft_tokens: int = 0
    num_new_blocks: int = 0
    slot: int = NO_SLOT
    """NO_SLOT until the decision is carried out."""


@dataclass(slots=True)
class Plan:
    """One step: what the worker is sent, and what is assumed until its result is settled."""

    sequence: int
    released_slots: list[int]
    """The worker releases these first, then takes admissions, windows and rows."""
    admissions: list[Admission]
    windows: list[tuple[int, Window]]
    """New windows by slot."""
    slots: SlotArray
    """Rows [num_rows]."""
    num_known_tokens: Int32Array
    """Known tokens to compute per row."""
    num_draft_tokens: Int32Array
    """Most drafts to verify per row."""
    num_new_blocks: Int32Array
    """New KV blocks per row."""
    new_blocks: Int32Array
    """Their ids, row after row [sum(num_new_blocks)]."""
    generations: Int32Array
    """Which use of its slot each row was [num_rows]."""
    least_chance: float
    """Chance below which a draft from a lookup or a grammar is not worth its time."""
    max_drafter_tokens: int | None
    """Most drafts of a row that a drafter with a model makes; None for any other."""
    num_form_tokens: int
    """How many drafts of rows with a grammar are not for their windows."""
    is_ahead: bool
    """Whether plans were in flight before this one."""
    emits: Int32Array
    """1 for rows whose known tokens end with this plan, so that they emit [num_rows]."""


@dataclass(slots=True)
class StepResult:
    """What a plan did; rows in the plan's order."""

    sequence: int
    slots: Int32Array
    lengths: Int32Array
    """Verified tokens per row, prompt and output, the new ones included."""
    num_emitted_tokens: Int32Array
    """New tokens per row."""
    token_ids: Int32Array
    """The new tokens, row after row [sum(num_emitted_tokens)]."""
    num_drafted_tokens: Int32Array
    num_accepted_tokens: Int32Array
    draft_sources: Int32Array
    """Where each row's drafts came from, a DraftSource; TARGET where there was none."""
    window_nodes: Int32Array = field(default_factory=lambda: _NO_NODES)
    """Node of its window that each row was at when it drafted, ROOT for none; counts for rows with
    drafts from their window [num_rows]. Empty if the worker does not report it."""
    accepted_nodes: Int32Array = field(default_factory=lambda: _NO_NODES)
    """Accepted nodes of all these rows, row after row [sum of their num_accepted_tokens]."""
    draft_positions: Int32Array = field(default_factory=lambda: _NO_NODES)
    """Position in the predictions of each row's first draft, NO_POSITION for rows whose drafts were
    not looked up there [num_rows]; empty if there is no such row."""
    num_form_drafted_tokens: Int32Array = field(default_factory=lambda: _NO_NODES)
    """How many of each row's drafts, the last ones, are from the form of its answer. The columns of
    sources, nodes and positions are about the others, of which the source is FORM if there are none
    [num_rows]; empty if no row has any."""
    num_form_accepted_tokens: Int32Array = field(default_factory=lambda: _NO_NODES)
    """The same of accepted drafts."""
    errors: dict[int, str] = field(default_factory=dict)
    """What went wrong, by slot."""
    num_tokens: int = 0
    """Tokens that the pass was fed."""
    step_ns: int = 0
    idle_ns: int = 0
    """Time for which the worker had nothing to run before."""
    draft_ns: int = 0
    """How much of step_ns the drafter took."""
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    """Of rows whose requests want some, by slot."""

    @property
    def num_base_drafted_tokens(self) -> Int32Array:
        """Drafts of each row that are not from the form of its answer [num_rows]."""
        of_form = self.num_form_drafted_tokens
        return self.num_drafted_tokens - of_form if len(of_form) else self.num_drafted_tokens

    @property
    def num_base_accepted_tokens(self) -> Int32Array:
        """The same of accepted drafts."""
        of_form = self.num_form_accepted_tokens
        return self.num_accepted_tokens - of_form if len(of_form) else self.num_accepted_tokens
