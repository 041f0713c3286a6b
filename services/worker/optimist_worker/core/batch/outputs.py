"""What a step gives back: packed on the device for one copy, and the result in the plan's order."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from optimist_common.columns import Int32Column
from optimist_common.draft_source import DraftSource
from optimist_worker.core.plan import Plan, RowLogprobs, StepResult

Column = TypeVar("Column", torch.Tensor, Int32Column)


class Outputs(NamedTuple, Generic[Column]):
    """The rows that ran, `[num_rows]` each but for the tokens; on the device or on the host."""

    lengths: Column
    """Verified tokens, prompt and output."""
    num_emitted_tokens: Column
    num_drafted_tokens: Column
    num_accepted_tokens: Column
    draft_sources: Column
    window_nodes: Column
    """Node of its window that each row was at when it drafted, -1 for none; counts where the drafts
    came from the window."""
    is_short: Column
    """1 where the blocks did not hold the known tokens."""
    is_broken: Column
    """1 where the model's logits were not finite."""
    has_ended: Column
    num_window_tokens: Column
    """Nodes that the window has left to draft."""
    num_fed_tokens: Column
    """Tokens that the pass was fed, drafts included."""
    token_ids: Column
    """Emitted tokens, one row after the other."""
    accepted_nodes: Column
    """Accepted nodes of the rows whose drafts came from their windows, one row after the other."""


_NUM_COLUMNS = len(Outputs._fields) - 2


def pack(outputs: Outputs[torch.Tensor]) -> torch.Tensor:
    """Packs outputs, int64 or bool `[num_rows]`.

    Args:
        outputs: With `token_ids` `[num_rows, width]`, of which as many of a row count as it has
            emitted, and `accepted_nodes` `[num_rows, width - 1]`.

    Returns:
        Int32 `[num_rows, columns, tokens and nodes]`.
    """
    *columns, token_ids, nodes = outputs
    return torch.cat([torch.stack(columns, 1), token_ids, nodes], 1).int()


def unpack(packed: Int32Column) -> Outputs[Int32Column]:
    """Reads what `pack` has packed, int32 `[num_rows, columns, tokens and nodes]`."""
    columns, width = packed.T[:_NUM_COLUMNS], (packed.shape[1] - _NUM_COLUMNS + 1) // 2
    token_ids, nodes = packed[:, _NUM_COLUMNS:][:, :width], packed[:, _NUM_COLUMNS:][:, width:]
    _, num_emitted, _, num_accepted, sources, *_ = columns
    if width == 1 and num_emitted.all():
        return Outputs._make([*columns, token_ids[:, 0], nodes.ravel()])
    is_emitted = num_emitted[:, None] > np.arange(width)
    num_nodes = num_accepted * (sources == DraftSource.PREDICTION)
    is_accepted = num_nodes[:, None] > np.arange(nodes.shape[1])
    return Outputs._make([*columns, token_ids[is_emitted], nodes[is_accepted]])


def no_outputs() -> Outputs[Int32Column]:
    """Returns the outputs of no rows."""
    return unpack(np.empty((0, _NUM_COLUMNS), np.int32))


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
        logprobs=[row for row in logprobs if row.slot not in errors],
    )


def _spread(columns: Int32Column, chosen: npt.NDArray[np.bool_]) -> Int32Column:
    """Puts columns where `chosen` is set, zeros elsewhere, `[num_columns, len(chosen)]`."""
    whole: Int32Column = np.zeros((len(columns), len(chosen)), np.int32)
    whole[:, chosen] = columns
    return whole
