"""What is sent to the worker and what comes back, as plain values."""

from dataclasses import dataclass, field

from optimist_scheduler.core.requests import Int32Array, Request
from optimist_scheduler.core.window import Window


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: released slots first, then admissions, windows and rows."""

    sequence: int
    released_slots: list[int]
    admissions: list[Request]
    """Requests that take the slot they name; their tokens are those of this moment."""
    windows: list[tuple[int, Window]]
    """New windows by slot."""
    slots: Int32Array
    """Rows [num_rows]."""
    num_known_tokens: Int32Array
    """Known tokens to compute per row."""
    num_draft_tokens: Int32Array
    """Most drafts to verify per row."""
    num_new_blocks: Int32Array
    """New KV blocks per row."""
    new_blocks: Int32Array
    """Their ids, row after row [sum(num_new_blocks)]."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the worker did; rows in the plan's order."""

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
    errors: dict[int, str] = field(default_factory=dict)
    """What went wrong, by slot."""


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """What was assumed when a plan was made."""

    sequence: int
    slots: Int32Array
    num_draft_tokens: Int32Array
    emits: Int32Array
    """1 for rows whose known tokens end with this plan, so that they emit [num_rows]."""
    window_shifts: Int32Array
    """Position in the prediction less output position, in the window of each row."""
