"""The tokens that one step has brought."""

from dataclasses import dataclass, field

from optimist_scheduler.core.values.arrays import Int32Array, Int64Array, SlotArray
from optimist_scheduler.core.values.output import FinishReason


@dataclass(slots=True)
class NewTokens:
    """The rows of a step that got tokens."""

    slots: SlotArray
    """[num_rows]"""
    starts: Int32Array
    """Length of each sequence before the step [num_rows]."""
    window_ends: Int32Array
    """Length of each sequence at the end of its window's likeliest path [num_rows]."""
    num_tokens: Int32Array
    """New tokens per row [num_rows]."""
    num_drafted_tokens: Int32Array
    num_accepted_tokens: Int32Array
    draft_sources: Int32Array
    window_numbers: Int32Array
    """See StepInFlight [num_rows]."""
    token_ids: Int32Array
    """The new tokens, row after row [num_new]."""
    rows: Int64Array
    """Row of each token [num_new]."""
    cells: Int64Array
    """Place of each token among those of all slots, see RequestTable.cells [num_new]."""
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    """Why requests end with their last token, by row."""
