"""Plain values to messages and back."""

from collections.abc import Mapping, Sequence

import numpy as np

from optimist.common.v1 import sampling_pb2
from optimist.proposer.v1 import proposer_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import floats_from_bytes, floats_to_bytes, from_bytes, to_bytes
from optimist_common.drafts import TokenTree
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import read_sampling
from optimist_common.scheduler_service.fields import MalformedError, read_integers
from optimist_scheduler.core.base.values import (
    Ended,
    Finished,
    FinishReason,
    Logprobs,
    ReportedLogprobs,
    ReportedPositions,
    StepOutputs,
)
from optimist_scheduler.core.requests.plan import Admission, Plan, StepResult
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.results.check import WRONG
from optimist_scheduler.core.windows.window import NO_POSITION, Window, WindowError

_REASONS = {
    reason: scheduler_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}")
    for reason in FinishReason
}


def new_request(add: scheduler_pb2.Add, owner: int) -> NewRequest:
    """Reads an Add of the stream `owner`; raises MalformedError if a column is none."""
    return NewRequest(
        request_id=add.request_id,
        prompt_token_ids=read_integers("prompt_token_ids", add.prompt_token_ids),
        max_tokens=add.max_tokens,
        predicted_token_ids=read_integers("predicted_token_ids", add.predicted_token_ids),
        num_predicted_tokens=read_integers("num_predicted_tokens", add.num_predicted_tokens),
        stop_token_ids=read_integers("stop_token_ids", add.stop_token_ids),
        min_tokens=add.min_tokens,
        sampling=_sampling(add.sampling),
        sampling_message=add.sampling,
        priority=add.priority,
        cache_salt=add.cache_salt,
        max_draft_tokens=add.max_draft_tokens if add.HasField("max_draft_tokens") else None,
        wants_prediction_positions=add.wants_prediction_positions,
        output_token_ids=read_integers("output_token_ids", add.output_token_ids),
        owner=owner,
        handle=add.handle,
    )


def finished_message(handle: int, finished: Finished, queue_us: int = 0) -> scheduler_pb2.Finished:
    """Writes the end of a request, which waited so long for its slot."""
    return scheduler_pb2.Finished(
        handle=handle,
        reason=_REASONS[finished.reason],
        message=finished.message,
        accepted_prediction_tokens=finished.accepted_prediction_tokens,
        rejected_prediction_tokens=finished.rejected_prediction_tokens,
        num_passes=finished.num_passes,
        num_tokens_by_source=to_bytes(finished.num_tokens_by_source),
        num_drafted_tokens=finished.num_drafted_tokens,
        num_cached_tokens=finished.num_cached_tokens,
        queue_us=queue_us,
        retry_ms=round(1000 * finished.retry_seconds),
    )


def finished_messages(
    ended: Sequence[Ended], queue_us: Mapping[str, int]
) -> list[scheduler_pb2.Finished]:
    """Writes the ends of requests; `queue_us` is by request id."""
    return [
        finished_message(each.handle, each.finished, queue_us[each.request_id]) for each in ended
    ]


def outputs_message(
    outputs: StepOutputs, queue_us: Mapping[str, int]
) -> scheduler_pb2.ConnectResponse:
    """Writes the part of a step that concerns one stream; see `Delivery.note` for `queue_us`."""
    of_form = outputs.num_form_tokens
    return scheduler_pb2.ConnectResponse(
        handles=to_bytes(outputs.handles),
        num_tokens=to_bytes(outputs.num_tokens),
        token_ids=to_bytes(outputs.token_ids),
        num_accepted_tokens=to_bytes(outputs.num_accepted_tokens),
        draft_sources=to_bytes(outputs.draft_sources),
        num_form_tokens=to_bytes(of_form) if np.count_nonzero(of_form) else b"",
        finished=finished_messages(outputs.ended, queue_us),
        logprobs=[_logprobs_message(each) for each in outputs.logprobs],
        prediction_positions=[_positions_message(each) for each in outputs.positions],
    )


def _positions_message(reported: ReportedPositions) -> scheduler_pb2.PredictionPositions:
    in_prompt = np.maximum(NO_POSITION - reported.positions, 0)
    return scheduler_pb2.PredictionPositions(
        handle=reported.handle,
        positions=to_bytes(np.maximum(reported.positions, NO_POSITION)),
        prompt_positions=to_bytes(in_prompt) if in_prompt.any() else b"",
    )


def plan_message(plan: Plan) -> worker_pb2.ExecuteRequest:
    """Writes a plan."""
    message = worker_pb2.ExecuteRequest()
    # Field by field, and parts where they belong: calls with all fields take a third longer.
    message.sequence = plan.sequence
    message.released_slots = to_bytes(plan.released_slots)
    message.slots = to_bytes(plan.slots)
    message.num_known_tokens = to_bytes(plan.num_known_tokens)
    message.num_draft_tokens = to_bytes(plan.num_draft_tokens)
    message.num_new_blocks = to_bytes(plan.num_new_blocks)
    message.new_blocks = to_bytes(plan.new_blocks)
    message.least_chance = plan.least_chance
    if plan.max_drafter_tokens is not None:
        message.max_drafter_tokens = plan.max_drafter_tokens
    message.num_form_tokens = plan.num_form_tokens
    for admission in plan.admissions:
        _write_admission(message.admissions.add(), admission)
    # Asked for once: each time protobuf makes an object for the field.
    add_window = message.windows.add
    for slot, window in plan.windows:
        part, tree = add_window(), window.tree
        part.slot, part.base = slot, window.base
        part.token_ids = to_bytes(tree.token_ids)
        if tree.parents is not None:
            part.parents = to_bytes(tree.parents)
    return message


def step_result(message: worker_pb2.ExecuteResponse) -> StepResult:
    """Reads a result; raises ValueError if a column is none.

    Log-probabilities that cannot be read are an error of their row.
    """
    errors = {error.slot: error.message for error in message.errors} if message.errors else {}
    logprobs: dict[int, Logprobs] = {}
    for each in message.logprobs:
        try:
            if each.slot in logprobs:
                raise ValueError("they are there twice")
            logprobs[each.slot] = _logprobs(each)
        except ValueError as error:
            errors.setdefault(each.slot, f"{WRONG}logprobs: {error}")
    # By position: by name this takes three times as long.
    return StepResult(
        message.sequence,
        from_bytes(message.slots),
        from_bytes(message.lengths),
        from_bytes(message.num_emitted_tokens),
        from_bytes(message.token_ids),
        from_bytes(message.num_drafted_tokens),
        from_bytes(message.num_accepted_tokens),
        from_bytes(message.draft_sources),
        from_bytes(message.window_nodes),
        from_bytes(message.accepted_nodes),
        from_bytes(message.draft_positions),
        from_bytes(message.num_form_drafted_tokens),
        from_bytes(message.num_form_accepted_tokens),
        errors,
        message.num_tokens,
        message.step_ns,
        message.idle_ns,
        message.draft_ns,
        logprobs,
    )


def read_window(message: proposer_pb2.Window) -> Window:
    """Reads a window; raises ValueError if a column is none."""
    positions = from_bytes(message.prediction_positions)
    if message.prompt_positions:
        in_prompt = from_bytes(message.prompt_positions)
        # Where the smallest is, numpy finds in half the time that a reduction takes.
        if len(in_prompt) != len(positions) or in_prompt.item(in_prompt.argmin()) < 0:
            raise WindowError("prompt_positions: must be one of each node, none negative")
        # Of these nodes, the position in the predictions is NO_POSITION.
        positions = positions - in_prompt
    tree = TokenTree.from_columns(from_bytes(message.token_ids), from_bytes(message.parents))
    return Window(message.base, tree, positions, floats_from_bytes(message.values))


def _logprobs(message: worker_pb2.RowLogprobs) -> Logprobs:
    return Logprobs(
        first_prompt_position=message.first_prompt_position,
        num_prompt_tokens=message.num_prompt_tokens,
        num_prompt_candidates=message.num_prompt_candidates,
        num_candidates=message.num_candidates,
        logprobs=floats_from_bytes(message.logprobs),
        candidate_token_ids=from_bytes(message.candidate_token_ids),
        candidate_logprobs=floats_from_bytes(message.candidate_logprobs),
    )


def _logprobs_message(reported: ReportedLogprobs) -> scheduler_pb2.Logprobs:
    logprobs = reported.logprobs
    return scheduler_pb2.Logprobs(
        handle=reported.handle,
        first_prompt_position=logprobs.first_prompt_position,
        num_prompt_tokens=logprobs.num_prompt_tokens,
        num_prompt_candidates=logprobs.num_prompt_candidates,
        num_candidates=logprobs.num_candidates,
        logprobs=floats_to_bytes(logprobs.logprobs),
        candidate_token_ids=to_bytes(logprobs.candidate_token_ids),
        candidate_logprobs=floats_to_bytes(logprobs.candidate_logprobs),
    )


def _write_admission(message: worker_pb2.Admission, admission: Admission) -> None:
    request = admission.request
    message.slot, message.request_id = admission.slot, request.request_id
    message.token_ids = to_bytes(request.token_ids)
    message.num_prompt_tokens = request.num_prompt_tokens
    if request.sampling_message is not None:
        message.sampling.CopyFrom(request.sampling_message)
    if request.sampling.num_prompt_logprobs is not None and not request.wants_prompt_logprobs:
        # All its prompt was reported, and is computed again.
        message.sampling.ClearField("num_prompt_logprobs")
    message.cached_blocks = to_bytes(admission.cached_blocks)
    message.max_length = request.max_length
    # At max_length the request ends anyway; the sum with a huge min_tokens may be no int32.
    message.min_length = min(request.min_length, request.max_length)
    if request.stop_token_ids:
        message.stop_token_ids = to_bytes(sorted(request.stop_token_ids))
    message.predicted_token_ids = to_bytes(request.predicted_token_ids)


def _sampling(message: sampling_pb2.SamplingParams) -> SamplingParams:
    try:
        return read_sampling(message)
    except ValueError as error:
        raise MalformedError(str(error)) from None
