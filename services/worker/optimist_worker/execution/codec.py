"""Plans and results between their messages and columns of plain numbers."""

import math

import numpy as np

from optimist.common.v1 import sampling_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import Int32Column, floats_to_bytes, from_bytes, to_bytes
from optimist_common.drafts import PREDICTION, TokenTree
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import read_sampling, write_sampling
from optimist_worker.core.plan import (
    MOST_WINDOW_NODES,
    Admission,
    Plan,
    PlanError,
    RowLogprobs,
    Sizes,
    StepResult,
    WindowUpdate,
)

_UINT32 = np.dtype("<u4")
_NEGATIVE = 2**31
"""Numbers that are negative as int32 are at least this as uint32, and so are sums of them."""
_PREDICTION_BYTE = bytes([PREDICTION])
_LEAST = {"slots": 0, "num_known_tokens": 1, "num_draft_tokens": 0, "num_new_blocks": 0}
"""Columns with a number per row, and the least that each may hold."""


def decode_plan(request: worker_pb2.ExecuteRequest, sizes: Sizes) -> Plan:
    """Decodes one plan; raises PlanError, which names the field, if it breaks the contract.

    What is wrong with a single request (its tokens, its sampling parameters) is left to that row.
    """
    table = _row_columns(request)
    # By index: to unpack it takes twice as long.
    slots, num_known, num_drafts, num_new = table[0], table[1], table[2], table[3]
    _check_ids("slots", slots, sizes.max_num_seqs)
    if np.count_nonzero(np.bincount(slots)) != len(slots):
        raise PlanError("slots: names a slot twice")
    # One reduction for all columns: on a few hundred rows, calls cost more than numbers.
    totals = np.add.reduce(table.view(_UINT32), 1).tolist()
    if max(totals) >= _NEGATIVE or np.count_nonzero(num_known) != len(slots):
        _check_least(table)
    _, known, drafts, number = totals
    if known + drafts > sizes.max_num_batched_tokens:
        raise PlanError(
            f"num_known_tokens and num_draft_tokens: {known + drafts} together, more than "
            f"max_num_batched_tokens ({sizes.max_num_batched_tokens})"
        )
    blocks = _column("new_blocks", request.new_blocks)
    _check_ids("new_blocks", blocks, sizes.num_blocks)
    if len(blocks) != number:
        raise PlanError(f"new_blocks: has {len(blocks)} blocks, but num_new_blocks add to {number}")
    # As lists: protobuf takes longer to go through its own sequences.
    admissions, windows = request.admissions[:], request.windows[:]
    least_chance = request.least_chance
    if not 0 <= least_chance < math.inf:
        raise PlanError(f"least_chance: must be at least 0 and finite, not {least_chance}")
    most = request.max_drafter_tokens if request.HasField("max_drafter_tokens") else None
    if most is not None and most < 0:
        raise PlanError(f"max_drafter_tokens: must be at least 0, not {most}")
    if request.num_form_tokens < 0:
        raise PlanError(f"num_form_tokens: must be at least 0, not {request.num_form_tokens}")
    return Plan(
        request.sequence,
        _released_slots(request.released_slots, sizes),
        [_admission(message, sizes) for message in admissions],
        [_window(message, sizes) for message in windows],
        slots,
        num_known,
        num_drafts,
        num_new,
        blocks,
        least_chance,
        most,
        request.num_form_tokens,
    )


def encode_result(
    result: StepResult, step_ns: int = 0, idle_ns: int = 0
) -> worker_pb2.ExecuteResponse:
    """Encodes the result of a step that took `step_ns`, after `idle_ns` with nothing to run."""
    draft_sources, positions = to_bytes(result.draft_sources), result.draft_positions
    # A source is a small number, in one byte of its four.
    has_windows = _PREDICTION_BYTE in draft_sources
    has_lookups = len(positions) > 0 and positions.item(positions.argmax()) >= 0
    response = worker_pb2.ExecuteResponse()
    # Field by field: all in one call take a third longer.
    response.sequence = result.sequence
    response.slots, response.lengths = to_bytes(result.slots), to_bytes(result.lengths)
    response.num_emitted_tokens = to_bytes(result.num_emitted_tokens)
    response.token_ids = to_bytes(result.token_ids)
    response.num_drafted_tokens = to_bytes(result.num_drafted_tokens)
    response.num_accepted_tokens = to_bytes(result.num_accepted_tokens)
    response.draft_sources = draft_sources
    response.num_tokens = result.num_tokens
    response.step_ns, response.idle_ns, response.draft_ns = step_ns, idle_ns, result.draft_ns
    if has_windows:
        response.window_nodes = to_bytes(result.window_nodes)
        response.accepted_nodes = to_bytes(result.accepted_nodes)
    if has_lookups:
        response.draft_positions = to_bytes(positions)
    if np.count_nonzero(result.num_form_drafted_tokens):
        response.num_form_drafted_tokens = to_bytes(result.num_form_drafted_tokens)
        response.num_form_accepted_tokens = to_bytes(result.num_form_accepted_tokens)
    for slot, message in result.errors.items():
        response.errors.add(slot=slot, message=message)
    for row in result.logprobs:
        response.logprobs.append(_row_logprobs(row))
    return response


def _row_logprobs(row: RowLogprobs) -> worker_pb2.RowLogprobs:
    return worker_pb2.RowLogprobs(
        slot=row.slot,
        first_prompt_position=row.first_prompt_position,
        num_prompt_tokens=row.num_prompt_tokens,
        num_prompt_candidates=row.num_prompt_candidates,
        num_candidates=row.num_candidates,
        logprobs=floats_to_bytes(row.logprobs),
        candidate_token_ids=to_bytes(row.candidate_token_ids),
        candidate_logprobs=floats_to_bytes(row.candidate_logprobs),
    )


def _row_columns(request: worker_pb2.ExecuteRequest) -> Int32Column:
    """Returns the columns of `_LEAST`, `[4, num_rows]`."""
    parts = (
        request.slots,
        request.num_known_tokens,
        request.num_draft_tokens,
        request.num_new_blocks,
    )
    size = len(parts[0])
    if size % 4 or not size == len(parts[1]) == len(parts[2]) == len(parts[3]):
        for name, part in zip(_LEAST, parts, strict=True):
            if len(_column(name, part)) != size // 4:
                raise PlanError(f"{name}: has {len(part) // 4} rows, but slots has {size // 4}")
    return from_bytes(b"".join(parts)).reshape(4, size // 4)


def _check_least(table: Int32Column) -> None:
    for (name, least), column in zip(_LEAST.items(), table, strict=True):
        if column.min() < least:
            raise PlanError(f"{name}: must be at least {least}, not {column.min()}")


def _check_ids(name: str, ids: Int32Column, number: int) -> None:
    """Raises PlanError unless all are in 0 to `number - 1`."""
    if len(ids) == 0:
        return
    # Negative ids are large as unsigned numbers, so one comparison finds both kinds. Numpy finds
    # where the largest is in a third of the time that a reduction takes.
    unsigned = ids.view(_UINT32)
    largest = unsigned.argmax()
    if unsigned.item(largest) >= number:
        raise PlanError(f"{name}: {ids[largest]} is not in 0 to {number - 1}")


def _list_ids(name: str, data: bytes, number: int) -> list[int]:
    """Returns a few ids; raises PlanError unless all are in 0 to `number - 1`."""
    column = _column(name, data)
    ids: list[int] = column.tolist()
    if min(ids) < 0 or max(ids) >= number:
        _check_ids(name, column, number)
    return ids


def _released_slots(data: bytes, sizes: Sizes) -> list[int]:
    if not data:
        return []
    slots = _list_ids("released_slots", data, sizes.max_num_seqs)
    if len(set(slots)) < len(slots):
        raise PlanError("released_slots: names a slot twice")
    return slots


def _admission(message: worker_pb2.Admission, sizes: Sizes) -> Admission:
    slot = message.slot
    if not 0 <= slot < sizes.max_num_seqs:
        raise _no_slot("admissions.slot", slot, sizes)
    cached_blocks, stop_token_ids = message.cached_blocks, message.stop_token_ids
    # By position: by name this takes twice as long.
    return Admission(
        slot,
        message.request_id,
        _column("admissions.token_ids", message.token_ids),
        message.num_prompt_tokens,
        _sampling(message.sampling),
        _list_ids("admissions.cached_blocks", cached_blocks, sizes.num_blocks)
        if cached_blocks
        else [],
        message.max_length,
        message.min_length,
        _column("admissions.stop_token_ids", stop_token_ids).tolist() if stop_token_ids else [],
        _column("admissions.predicted_token_ids", message.predicted_token_ids),
    )


def _sampling(message: sampling_pb2.SamplingParams) -> SamplingParams:
    try:
        return read_sampling(message)
    except ValueError as error:
        raise PlanError(f"admissions.{error}") from None


def _window(message: worker_pb2.Window, sizes: Sizes) -> WindowUpdate:
    slot, base, parents = message.slot, message.base, message.parents
    if not 0 <= slot < sizes.max_num_seqs:
        raise _no_slot("windows.slot", slot, sizes)
    if base < 0:
        raise PlanError(f"windows.base: must not be negative, not {base}")
    token_ids = _column("windows.token_ids", message.token_ids)
    if len(token_ids) > MOST_WINDOW_NODES:
        number = len(token_ids)
        raise PlanError(f"windows.token_ids: {number} nodes, more than {MOST_WINDOW_NODES}")
    return WindowUpdate(slot, base, token_ids, _parents(parents, token_ids) if parents else [])


def _parents(data: bytes, token_ids: Int32Column) -> list[int]:
    """Returns the parents of a tree, and nothing for a chain."""
    tree = TokenTree.from_columns(token_ids, _column("windows.parents", data))
    if (fault := tree.find_fault(allows_twins=True)) is not None:
        raise PlanError(f"windows.{fault}")
    return [] if tree.parents is None else tree.parents.tolist()


def _no_slot(name: str, slot: int, sizes: Sizes) -> PlanError:
    return PlanError(f"{name}: {slot} is not in 0 to {sizes.max_num_seqs - 1}")


def _column(name: str, data: bytes) -> Int32Column:
    try:
        return from_bytes(data)
    except ValueError:
        raise PlanError(f"{name}: {len(data)} bytes are no int32 column") from None


def write_plan(plan: Plan) -> worker_pb2.ExecuteRequest:
    """Writes the message that `decode_plan` reads as this plan."""
    return worker_pb2.ExecuteRequest(
        sequence=plan.sequence,
        released_slots=to_bytes(list(plan.released_slots)),
        admissions=[
            worker_pb2.Admission(
                slot=admission.slot,
                request_id=admission.request_id,
                token_ids=to_bytes(admission.token_ids),
                num_prompt_tokens=admission.num_prompt_tokens,
                sampling=write_sampling(admission.sampling),
                cached_blocks=to_bytes(admission.cached_blocks),
                max_length=admission.max_length,
                min_length=admission.min_length,
                stop_token_ids=to_bytes(admission.stop_token_ids),
                predicted_token_ids=to_bytes(admission.predicted_token_ids),
            )
            for admission in plan.admissions
        ],
        windows=[
            worker_pb2.Window(
                slot=window.slot,
                base=window.base,
                token_ids=to_bytes(window.token_ids),
                parents=to_bytes(window.parents),
            )
            for window in plan.windows
        ],
        slots=to_bytes(plan.slots),
        num_known_tokens=to_bytes(plan.num_known_tokens),
        num_draft_tokens=to_bytes(plan.num_draft_tokens),
        num_new_blocks=to_bytes(plan.num_new_blocks),
        new_blocks=to_bytes(plan.new_blocks),
        least_chance=plan.least_chance,
        max_drafter_tokens=plan.max_drafter_tokens,
        num_form_tokens=plan.num_form_tokens,
    )
