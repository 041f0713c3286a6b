"""What a pass made of its rows: slots moved on, and the result's columns."""

from typing import NamedTuple

import numpy as np

from optimist_worker.core.acceptance import accept
from optimist_worker.core.plan import Plan, StepResult
from optimist_worker.core.row import Row
from optimist_worker.core.slot import Slot


class Outcome(NamedTuple):
    """What one row emitted, and how many of its drafts were verified and accepted."""

    token_ids: list[int]
    num_drafts: int
    num_accepted: int


_NOTHING = Outcome([], 0, 0)


def settle_row(row: Row, chosen: list[int]) -> Outcome:
    """Moves the slot to where the pass has brought it; rejected drafts are left behind.

    Args:
        row: A row that has run.
        chosen: The tokens chosen at its positions, as `choose_tokens` returns them.
    """
    emitted = accept(row.draft_token_ids, chosen)
    num_accepted = max(0, len(emitted) - 1)
    row.slot.num_computed_tokens += row.num_known_tokens + num_accepted
    row.slot.extend(emitted)
    return Outcome(emitted, len(row.draft_token_ids), num_accepted)


def collect_result(
    plan: Plan,
    slots: dict[int, Slot],
    outcomes: dict[int, Outcome],
    errors: dict[int, str],
    num_tokens: int,
) -> StepResult:
    """Puts the outcomes of a step in the plan's order; rows without one emitted nothing.

    Args:
        plan: The plan that was run.
        slots: Requests by slot, as the step left them.
        outcomes: By slot, of the rows that ran.
        errors: By slot, why others failed.
        num_tokens: Tokens that were fed.
    """
    lengths: list[int] = []
    token_ids: list[int] = []
    counts: list[tuple[int, int, int]] = []
    num_live_rows = 0
    for planned in plan.rows():
        slot, outcome = slots.get(planned.slot), outcomes.get(planned.slot, _NOTHING)
        lengths.append(0 if slot is None else slot.num_tokens)
        token_ids += outcome.token_ids
        counts.append((len(outcome.token_ids), outcome.num_drafts, outcome.num_accepted))
        num_live_rows += planned.slot in outcomes and slot is not None and not slot.ended
    columns = np.array(counts, dtype=np.int32).reshape(-1, 3)
    return StepResult(
        sequence=plan.sequence,
        repeat=plan.repeat,
        slots=plan.slots,
        lengths=np.array(lengths, dtype=np.int32),
        num_emitted_tokens=columns[:, 0],
        token_ids=np.array(token_ids, dtype=np.int32),
        num_drafted_tokens=columns[:, 1],
        num_accepted_tokens=columns[:, 2],
        errors=errors,
        num_tokens=num_tokens,
        num_live_rows=num_live_rows,
    )
