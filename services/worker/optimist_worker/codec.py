"""Plans and results between their columns and plain values."""

from dataclasses import dataclass

from optimist.common.v1 import sampling_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import read_sampling
from optimist_worker.core.plan import (
    Admission,
    Plan,
    PlanError,
    PlannedRow,
    StepResult,
    WindowUpdate,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan must keep to."""

    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int


def decode_plan(request: worker_pb2.ExecuteRequest, limits: Limits) -> Plan:
    """Decodes one plan.

    Raises:
        PlanError: It breaks the contract; the text names the field. What is wrong with a single
            request (its tokens, its sampling parameters) is left to that row.
    """
    return Plan(
        sequence=request.sequence,
        released_slots=_slots("released_slots", request.released_slots, limits),
        admissions=[_admission(admission, limits) for admission in request.admissions],
        windows=[_window(window, limits) for window in request.windows],
        rows=_rows(request, limits),
    )


def encode_result(result: StepResult, step_ns: int) -> worker_pb2.ExecuteResponse:
    """Encodes the result of one step that took `step_ns` nanoseconds."""
    rows = result.rows
    return worker_pb2.ExecuteResponse(
        sequence=result.sequence,
        slots=to_bytes([row.slot for row in rows]),
        lengths=to_bytes([row.length for row in rows]),
        num_emitted_tokens=to_bytes([len(row.token_ids) for row in rows]),
        token_ids=to_bytes([token_id for row in rows for token_id in row.token_ids]),
        num_drafted_tokens=to_bytes([row.num_drafted_tokens for row in rows]),
        num_accepted_tokens=to_bytes([row.num_accepted_tokens for row in rows]),
        errors=[
            worker_pb2.RowError(slot=row.slot, message=row.error)
            for row in rows
            if row.error is not None
        ],
        step_ns=step_ns,
    )


def _rows(request: worker_pb2.ExecuteRequest, limits: Limits) -> list[PlannedRow]:
    slots = _slots("slots", request.slots, limits)
    columns = {
        name: _column(name, getattr(request, name))
        for name in ("num_known_tokens", "num_draft_tokens", "num_new_blocks")
    }
    for (name, column), least in zip(columns.items(), (1, 0, 0), strict=True):
        if len(column) != len(slots):
            raise PlanError(f"{name}: has {len(column)} rows, but slots has {len(slots)}")
        if column and min(column) < least:
            raise PlanError(f"{name}: must be at least {least}, not {min(column)}")
    num_tokens = sum(columns["num_known_tokens"]) + sum(columns["num_draft_tokens"])
    if num_tokens > limits.max_num_batched_tokens:
        raise PlanError(
            f"num_known_tokens and num_draft_tokens: {num_tokens} together, more than "
            f"max_num_batched_tokens ({limits.max_num_batched_tokens})"
        )
    new_blocks = _new_blocks(request, sum(columns["num_new_blocks"]), limits)
    rows: list[PlannedRow] = []
    first = 0
    for slot, num_known, num_draft, num_new in zip(slots, *columns.values(), strict=True):
        blocks = new_blocks[first : first + num_new]
        rows.append(PlannedRow(slot, num_known, num_draft, blocks))
        first += num_new
    return rows


def _new_blocks(request: worker_pb2.ExecuteRequest, number: int, limits: Limits) -> list[int]:
    blocks = _column("new_blocks", request.new_blocks)
    if len(blocks) != number:
        raise PlanError(f"new_blocks: has {len(blocks)} blocks, but num_new_blocks add to {number}")
    for block in blocks:
        if not 0 <= block < limits.num_blocks:
            raise PlanError(f"new_blocks: {block} is not in 0 to {limits.num_blocks - 1}")
    return blocks


def _admission(message: worker_pb2.Admission, limits: Limits) -> Admission:
    return Admission(
        slot=_slot("admissions.slot", message.slot, limits),
        request_id=message.request_id,
        token_ids=_column("admissions.token_ids", message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        sampling=_sampling(message.sampling),
    )


def _sampling(message: sampling_pb2.SamplingParams) -> SamplingParams:
    try:
        return read_sampling(message)
    except ValueError as error:
        raise PlanError(f"admissions.{error}") from None


def _window(message: worker_pb2.Window, limits: Limits) -> WindowUpdate:
    if message.base < 0:
        raise PlanError(f"windows.base: must not be negative, not {message.base}")
    return WindowUpdate(
        slot=_slot("windows.slot", message.slot, limits),
        base=message.base,
        token_ids=_column("windows.token_ids", message.token_ids),
    )


def _slots(name: str, data: bytes, limits: Limits) -> list[int]:
    slots = [_slot(name, slot, limits) for slot in _column(name, data)]
    if len(set(slots)) != len(slots):
        raise PlanError(f"{name}: names a slot twice")
    return slots


def _slot(name: str, slot: int, limits: Limits) -> int:
    if not 0 <= slot < limits.max_num_seqs:
        raise PlanError(f"{name}: {slot} is not in 0 to {limits.max_num_seqs - 1}")
    return slot


def _column(name: str, data: bytes) -> list[int]:
    try:
        return from_bytes(data).tolist()
    except ValueError:
        raise PlanError(f"{name}: {len(data)} bytes are no int32 column") from None
