"""What the host knows of slots, and how large a step may become before it runs.

All that moves with steps is in the SlotTable.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.sampling_table import Needs
from optimist_worker.core.batch.slot_table import MOST_LATE_TOKENS
from optimist_worker.core.plan import Admission, PlannedRow


def find_fault(
    admission: Admission,
    block_size: int,
    max_model_len: int,
    vocab_size: int,
    *,
    shares_blocks: bool = True,
) -> str | None:
    """Returns what is wrong with a request, naming the field, or None.

    Blocks cannot be shared if they do not hold all that is left of their tokens.
    A faulty request gets a slot as well: its error is reported when its first row comes.
    """
    num_tokens = len(admission.token_ids)
    num_cached = len(admission.cached_blocks) * block_size
    if (fault := _find_length_fault(admission, max_model_len)) is not None:
        return fault
    if num_cached and not shares_blocks:
        return "cached_blocks: must be empty, since states of recurrent layers are not in blocks"
    if num_cached >= num_tokens:
        return (
            f"cached_blocks: {num_cached} tokens are cached, but at most {num_tokens - 1} "
            f"of {num_tokens} may be"
        )
    column = np.asarray(admission.token_ids)
    lowest, highest = int(column.min()), int(column.max())
    outside = lowest if lowest < 0 else highest
    if not 0 <= outside < vocab_size:
        return f"token_ids: {outside} is not in the vocabulary ({vocab_size})"
    if len(admission.predicted_token_ids):
        column = np.asarray(admission.predicted_token_ids)
        if int(column.min()) < 0 or int(column.max()) >= vocab_size:
            return f"predicted_token_ids: must be from 0 to {vocab_size - 1}"
    return admission.sampling.fault(vocab_size)


def _find_length_fault(admission: Admission, max_model_len: int) -> str | None:
    num_tokens, max_length = len(admission.token_ids), admission.max_length
    if num_tokens == 0:
        return "token_ids must not be empty"
    if not 0 < admission.num_prompt_tokens <= num_tokens:
        return f"num_prompt_tokens must be in 1 to {num_tokens}, not {admission.num_prompt_tokens}"
    if not 0 <= max_length <= max_model_len:
        return f"max_length must be in 0 to {max_model_len}, not {max_length}"
    if num_tokens >= (max_length or max_model_len):
        return (
            f"token_ids: {num_tokens} tokens leave no room for another within "
            f"max_length ({max_length or max_model_len})"
        )
    if admission.min_length < 0:
        return f"min_length must be at least 0, not {admission.min_length}"
    if admission.min_length and len(admission.stop_token_ids) > MOST_LATE_TOKENS:
        return f"stop_token_ids: must be at most {MOST_LATE_TOKENS} with a min_length"
    return None


_PLAIN = SamplingParams()


@dataclass(slots=True)
class HeldSlot:
    """One admitted request."""

    request_id: str
    num_tokens: int
    """As they were admitted, prompt and output."""
    num_blocks: int
    """Blocks that it holds."""
    error: str | None
    """Why this request can never run, or None."""
    has_window: bool = False
    """Whether its window may have something to draft, as far as is known."""
    has_tree: bool = False
    """Whether its window is no chain."""
    window_sequence: int = 0
    """Number of the plan that brought the window."""
    num_unseen: int = 0
    """At least as many tokens as the drafter has not seen, as far as is known."""
    has_grammar: bool = False
    min_length: int = 0
    """Length below which no stop token may be chosen; 0 if it is known to be reached."""
    sampling: SamplingParams = _PLAIN
    """Says which log-probabilities are wanted."""
    num_prompt_tokens: int = 0
    num_fed_tokens: int = 0
    """Of a request that wants log-probabilities: known tokens that steps were given, and those
    that were cached."""


def hold(admission: Admission, error: str | None, block_size: int) -> HeldSlot:
    """Returns what is known of a request that has just been admitted."""
    return HeldSlot(
        request_id=admission.request_id,
        num_tokens=len(admission.token_ids),
        num_blocks=len(admission.cached_blocks),
        error=error,
        num_unseen=len(admission.token_ids),
        has_grammar=bool(admission.sampling.grammar),
        min_length=admission.min_length if admission.min_length > len(admission.token_ids) else 0,
        sampling=admission.sampling,
        num_prompt_tokens=admission.num_prompt_tokens,
        num_fed_tokens=len(admission.cached_blocks) * block_size,
    )


@dataclass(frozen=True, slots=True)
class StepBounds:
    """What the host knows of a step's rows, so that nobody has to wait for the device."""

    num_rows: int
    num_tokens: int
    """Most tokens of the pass."""
    num_logits: int
    """Most rows of logits."""
    max_num_queries: int
    """Most tokens of one row."""
    max_num_keys: int
    """Most keys of one row."""
    max_num_drafts: int
    """Most drafts of one row."""
    uses_windows: bool
    """Whether a row may have something to draft from its window."""
    has_trees: bool
    """Whether one of these windows is no chain."""
    uses_drafter: bool
    """Whether a row may have nothing to draft from but the drafter."""
    max_unseen: int
    """Most tokens of one row that the drafter may be shown before it drafts."""
    num_unseen: int
    """Most of them of all rows."""
    has_grammar: bool
    """Whether a row has to follow a grammar."""
    has_minimum: bool
    """Whether a row may be below its least length."""
    needs: Needs
    """What the rows' sampling needs at least."""
    least_chance: float = 0.0
    """See `Plan`."""
    max_drafter_tokens: int | None = None
    num_form_tokens: int = 0
    """See `Plan`."""


def find_bounds(
    rows: Sequence[PlannedRow],
    held: Sequence[HeldSlot],
    block_size: int,
    needs: Needs,
    least_chance: float = 0.0,
    max_drafter_tokens: int | None = None,
    num_form_tokens: int = 0,
) -> StepBounds:
    """Returns the bounds of a step; the slots have the blocks that the plan gives them."""
    lengths = [row.num_known_tokens + row.num_draft_tokens for row in rows]
    num_drafts = [row.num_draft_tokens for row in rows]
    capacities = [slot.num_blocks * block_size for slot in held]
    may_draft = max_drafter_tokens != 0
    # 0 where the drafter will not draft.
    num_unseen = [
        min(slot.num_unseen, capacity) if may_draft and drafts > 0 and not slot.has_window else 0
        for drafts, slot, capacity in zip(num_drafts, held, capacities, strict=True)
    ]
    return StepBounds(
        num_rows=len(rows),
        num_tokens=sum(lengths),
        num_logits=sum(num_drafts) + len(rows),
        max_num_queries=max(lengths),
        max_num_keys=max(capacities),
        max_num_drafts=max(num_drafts),
        uses_windows=any(slot.has_window for slot in held),
        has_trees=any(slot.has_window and slot.has_tree for slot in held),
        uses_drafter=any(num_unseen),
        max_unseen=max(num_unseen),
        num_unseen=sum(num_unseen),
        has_grammar=any(slot.has_grammar for slot in held),
        has_minimum=any(slot.min_length for slot in held),
        needs=needs,
        least_chance=least_chance,
        max_drafter_tokens=max_drafter_tokens,
        num_form_tokens=num_form_tokens,
    )
