"""The result of a step, rows in the plan's order."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from optimist_common.columns import Int32Column
from optimist_worker.core.batch.outputs import Outputs
from optimist_worker.core.plan import Plan, RowLogprobs, StepResult


def collect_result(
    plan: Plan,
    slots: list[int],
    outputs: Outputs[Int32Column],
    errors: dict[int, str],
    lengths: dict[int, int],
    draft_ns: int,
    logprobs: Sequence[RowLogprobs] = (),
) -> StepResult:
    """Puts the outputs of a step in the plan's order; rows that did not run emitted nothing.

    Args:
        plan: The plan that was run.
        slots: Slots of the rows that ran, in the plan's order.
        outputs: Of these rows.
        errors: Why rows failed, by slot.
        lengths: Tokens of the slots whose rows did not run, where they hold a request.
        draft_ns: Time that the drafter took.
        logprobs: Of the rows that want some; those that failed are left out.
    """
    columns = np.array(outputs[:-2])
    if len(slots) < len(plan.slots):
        columns = _spread(columns, np.isin(plan.slots, slots))
        for row, slot in enumerate(plan.slots.tolist()):
            columns[0, row] += lengths.get(slot, 0)
    spread: Outputs[Int32Column] = Outputs._make([*columns, *outputs[-2:]])
    has_failed = np.isin(slots, list(errors)) if errors else np.zeros(len(slots), np.bool_)
    return StepResult(
        sequence=plan.sequence,
        repeat=plan.repeat,
        slots=plan.slots,
        lengths=spread.lengths,
        num_emitted_tokens=spread.num_emitted_tokens,
        token_ids=spread.token_ids,
        num_drafted_tokens=spread.num_drafted_tokens,
        num_accepted_tokens=spread.num_accepted_tokens,
        draft_sources=spread.draft_sources,
        window_nodes=spread.window_nodes,
        accepted_nodes=spread.accepted_nodes,
        errors=errors,
        num_tokens=int(outputs.num_fed_tokens.sum()),
        num_live_rows=int(np.count_nonzero((outputs.has_ended == 0) & ~has_failed)),
        draft_ns=draft_ns,
        logprobs=[told for told in logprobs if told.slot not in errors],
    )


def _spread(columns: Int32Column, chosen: npt.NDArray[np.bool_]) -> Int32Column:
    """Puts columns where `chosen` is set, zeros elsewhere, `[num_columns, len(chosen)]`."""
    whole: Int32Column = np.zeros((len(columns), len(chosen)), np.int32)
    whole[:, chosen] = columns
    return whole
