"""The result of a step, rows in the plan's order."""

import numpy as np

from optimist_common.columns import Int32Column
from optimist_worker.core.outputs import Outputs
from optimist_worker.core.plan import Plan, StepResult


def collect_result(
    plan: Plan,
    slots: list[int],
    outputs: Outputs,
    errors: dict[int, str],
    lengths: dict[int, int],
    draft_ns: int,
) -> StepResult:
    """Puts the outputs of a step in the plan's order; rows that did not run emitted nothing.

    Args:
        plan: The plan that was run.
        slots: Slots of the rows that ran, in the plan's order.
        outputs: Of these rows.
        errors: Why rows failed, by slot.
        lengths: Tokens of the slots whose rows did not run, where they hold a request.
        draft_ns: Time that the drafter took.
    """
    runs = np.isin(plan.slots, slots)

    def spread(column: Int32Column) -> Int32Column:
        if len(column) == len(runs):
            return np.ascontiguousarray(column)
        whole: Int32Column = np.zeros(len(runs), np.int32)
        whole[runs] = column
        return whole

    all_lengths = spread(outputs.lengths)
    for row in np.flatnonzero(~runs).tolist():
        all_lengths[row] = lengths.get(int(plan.slots[row]), 0)
    has_failed = np.isin(slots, list(errors)) if errors else np.zeros(len(slots), np.bool_)
    return StepResult(
        sequence=plan.sequence,
        repeat=plan.repeat,
        slots=plan.slots,
        lengths=all_lengths,
        num_emitted_tokens=spread(outputs.num_emitted_tokens),
        token_ids=outputs.token_ids,
        num_drafted_tokens=spread(outputs.num_drafted_tokens),
        num_accepted_tokens=spread(outputs.num_accepted_tokens),
        draft_sources=spread(outputs.draft_sources),
        errors=errors,
        num_tokens=int(outputs.num_fed_tokens.sum()),
        num_live_rows=int(np.count_nonzero((outputs.has_ended == 0) & ~has_failed)),
        draft_ns=draft_ns,
    )
