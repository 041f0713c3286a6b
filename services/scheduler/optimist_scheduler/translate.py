"""Plain values to messages and back."""

from optimist.common.v1 import sampling_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import read_sampling, write_sampling
from optimist_scheduler.core.output import Finished, FinishReason
from optimist_scheduler.core.plan import Plan, StepResult
from optimist_scheduler.core.validate import NewRequest

_REASONS = {
    FinishReason.STOP: scheduler_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: scheduler_pb2.FINISH_REASON_LENGTH,
    FinishReason.REFUSED: scheduler_pb2.FINISH_REASON_REFUSED,
    FinishReason.OVERLOADED: scheduler_pb2.FINISH_REASON_OVERLOADED,
    FinishReason.ERROR: scheduler_pb2.FINISH_REASON_ERROR,
    FinishReason.ABORTED: scheduler_pb2.FINISH_REASON_ABORTED,
}


class MalformedError(ValueError):
    """A message that breaks the contract; the text names the field."""


def new_request(add: scheduler_pb2.Add) -> NewRequest:
    """Reads an Add; raises MalformedError if a column is none."""
    return NewRequest(
        request_id=add.request_id,
        prompt_token_ids=_integers("prompt_token_ids", add.prompt_token_ids),
        max_tokens=add.max_tokens,
        predicted_token_ids=_integers("predicted_token_ids", add.predicted_token_ids),
        stop_token_ids=_integers("stop_token_ids", add.stop_token_ids),
        min_tokens=add.min_tokens,
        sampling=_sampling(add.sampling),
    )


def finished_message(handle: int, finished: Finished) -> scheduler_pb2.Finished:
    """Writes the end of a request."""
    return scheduler_pb2.Finished(
        handle=handle,
        reason=_REASONS[finished.reason],
        message=finished.message,
        accepted_prediction_tokens=finished.accepted_prediction_tokens,
        rejected_prediction_tokens=finished.rejected_prediction_tokens,
        num_passes=finished.num_passes,
    )


def plan_message(plan: Plan) -> worker_pb2.ExecuteRequest:
    """Writes a plan."""
    return worker_pb2.ExecuteRequest(
        sequence=plan.sequence,
        released_slots=to_bytes(plan.released_slots),
        admissions=[
            worker_pb2.Admission(
                slot=request.slot,
                request_id=request.request_id,
                token_ids=to_bytes(request.token_ids),
                num_prompt_tokens=request.num_prompt_tokens,
                sampling=write_sampling(request.sampling),
            )
            for request in plan.admissions
        ],
        windows=[
            worker_pb2.Window(slot=slot, base=window.base, token_ids=to_bytes(window.token_ids))
            for slot, window in plan.windows
        ],
        slots=to_bytes(plan.slots),
        num_known_tokens=to_bytes(plan.num_known_tokens),
        num_draft_tokens=to_bytes(plan.num_draft_tokens),
        num_new_blocks=to_bytes(plan.num_new_blocks),
        new_blocks=to_bytes(plan.new_blocks),
    )


def step_result(message: worker_pb2.ExecuteResponse) -> StepResult:
    """Reads a result; raises ValueError if a column is none."""
    return StepResult(
        sequence=message.sequence,
        slots=from_bytes(message.slots),
        lengths=from_bytes(message.lengths),
        num_emitted_tokens=from_bytes(message.num_emitted_tokens),
        token_ids=from_bytes(message.token_ids),
        num_drafted_tokens=from_bytes(message.num_drafted_tokens),
        num_accepted_tokens=from_bytes(message.num_accepted_tokens),
        errors={error.slot: error.message for error in message.errors},
    )


def _integers(name: str, data: bytes) -> list[int]:
    try:
        return [int(value) for value in from_bytes(data).tolist()]
    except ValueError:
        raise MalformedError(f"{name}: {len(data)} bytes are no int32 column") from None


def _sampling(message: sampling_pb2.SamplingParams) -> SamplingParams:
    try:
        return read_sampling(message)
    except ValueError as error:
        raise MalformedError(str(error)) from None
