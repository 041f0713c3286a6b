"""What a pass of vLLM brought, as messages to gateways."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_to_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.scheduler_service.stream import GatewayStream
from optimist_vllm.accounts import DRAFT_SECONDS
from optimist_vllm.core.payload import PAYLOAD, Report
from optimist_vllm.engine.request import Running

NO_POSITION = -1
"""A draft that was read from none of the predictions; below it are positions in the prompt."""
_REASONS = {
    "STOP": scheduler_pb2.FINISH_REASON_STOP,
    "REPETITION": scheduler_pb2.FINISH_REASON_STOP,
    "LENGTH": scheduler_pb2.FINISH_REASON_LENGTH,
    "ABORT": scheduler_pb2.FINISH_REASON_ABORTED,
    "ERROR": scheduler_pb2.FINISH_REASON_ERROR,
}


class _Part:
    """The outputs of one stream."""

    def __init__(self) -> None:
        self.handles: list[int] = []
        self.num_tokens: list[int] = []
        self.token_ids: list[int] = []
        self.num_accepted: list[int] = []
        self.sources: list[int] = []
        self.drafted: list[tuple[int, int, int]] = []
        self.response = scheduler_pb2.ConnectResponse()

    def add(self, handle: int, token_ids: Sequence[int], accepted: int, source: int) -> None:
        self.handles.append(handle)
        self.num_tokens.append(len(token_ids))
        self.token_ids += token_ids
        self.num_accepted.append(accepted)
        self.sources.append(source)

    def message(self) -> scheduler_pb2.ConnectResponse:
        response = self.response
        response.handles = to_bytes(self.handles)
        response.num_tokens = to_bytes(self.num_tokens)
        response.token_ids = to_bytes(self.token_ids)
        response.num_accepted_tokens = to_bytes(self.num_accepted)
        response.draft_sources = to_bytes(self.sources)
        return response


class Written(NamedTuple):
    """What a pass brought."""

    messages: dict[GatewayStream, scheduler_pb2.ConnectResponse]
    ended: list[str]
    """Ids of the requests that ended."""
    drafted: list[tuple[int, int, int]]
    """Of each request with drafts of ours: how many were verified and accepted; new tokens."""
    num_preemptions: int


def write_outputs(
    outputs: Iterable[Any], requests: Mapping[str, Running], source: DraftSource
) -> Written:
    """Writes the outputs of a pass, and takes them into the accounts of the requests.

    Args:
        outputs: vLLM's `EngineCoreOutput` of each request; those of requests that have ended are
            ignored.
        requests: By their ids in vLLM.
        source: Where drafts come from.
    """
    parts: dict[GatewayStream, _Part] = {}
    ended: list[str] = []
    num_preemptions = 0
    for output in outputs:
        request = requests.get(output.request_id)
        if request is None:
            continue
        part = parts.setdefault(request.stream, _Part())
        num_preemptions += _take_events(output, request)
        if output.new_token_ids:
            _add_tokens(part, output, request, source)
        if request.num_logprobs is not None or output.new_prompt_logprobs_tensors is not None:
            logprobs = _logprobs(output, request)
            if logprobs is not None:
                part.response.logprobs.append(logprobs)
        if output.finish_reason is not None:
            ended.append(output.request_id)
            name = output.finish_reason.name
            message = "vLLM ended the request with an error" if name == "ERROR" else ""
            part.response.finished.append(request.end(_REASONS[name], message))
    return Written(
        {stream: part.message() for stream, part in parts.items()},
        ended,
        [row for part in parts.values() for row in part.drafted],
        num_preemptions,
    )


def _take_events(output: Any, request: Running) -> int:
    """Takes what became of a request since its last output; returns how often it was preempted."""
    num_preemptions = 0
    for event in output.events or ():
        if event.type.name == "QUEUED":
            request.queued = event.timestamp
        elif event.type.name == "SCHEDULED" and not request.queue_us:
            request.queue_us = max(round((event.timestamp - request.queued) * 1e6), 1)
        elif event.type.name == "PREEMPTED":
            num_preemptions += 1
    if output.prefill_stats is not None and not request.num_passes:
        request.num_cached_tokens = output.prefill_stats.num_cached_tokens
    return num_preemptions


def _add_tokens(part: _Part, output: Any, request: Running, source: DraftSource) -> None:
    fields = (output.kv_transfer_params or {}).get(PAYLOAD)
    report = Report(*fields) if fields is not None else None
    num_tokens = len(output.new_token_ids)
    if report is not None:
        num_accepted = len(report.positions)
        DRAFT_SECONDS.inc(report.draft_ns / 1e9)
        if num_drafted := report.num_drafted - request.num_drafted:
            part.drafted.append((num_drafted, num_accepted, num_tokens))
        request.accepted_prediction_tokens = report.num_accepted
        request.rejected_prediction_tokens = report.num_rejected
        request.num_drafted = report.num_drafted
    else:
        # A drafter of vLLM's own; each pass brings a token of the model besides.
        num_accepted = num_tokens - 1
        request.num_drafted += num_accepted
    used = source if num_accepted else DraftSource.TARGET
    request.num_passes += 1
    request.by_source[source] += num_accepted
    request.by_source[DraftSource.TARGET] += num_tokens - num_accepted
    part.add(request.handle, output.new_token_ids, num_accepted, used)
    if request.wants_positions:
        positions = report.positions if report is not None else [NO_POSITION] * num_accepted
        part.response.prediction_positions.append(_positions(request.handle, positions))


def _positions(handle: int, positions: Sequence[int]) -> scheduler_pb2.PredictionPositions:
    column = np.asarray(positions, np.int32)
    in_prompt = np.maximum(NO_POSITION - column, 0)
    return scheduler_pb2.PredictionPositions(
        handle=handle,
        positions=to_bytes(np.maximum(column, NO_POSITION)),
        prompt_positions=to_bytes(in_prompt) if in_prompt.any() else b"",
    )


def _logprobs(output: Any, request: Running) -> scheduler_pb2.Logprobs | None:
    """Writes log-probabilities of the prompt, which come once, and of new tokens; None if none."""
    logprobs: list[np.ndarray[Any, Any]] = []
    token_ids: list[np.ndarray[Any, Any]] = []
    candidates: list[np.ndarray[Any, Any]] = []
    num_prompt = 0

    def take(ids: Any, values: Any, number: int) -> None:
        # The first column is the token itself. Others of the batch may ask for more.
        logprobs.append(np.asarray(values)[:, 0])
        token_ids.append(np.asarray(ids)[:, 1 : 1 + number].ravel())
        candidates.append(np.asarray(values)[:, 1 : 1 + number].ravel())

    prompt = output.new_prompt_logprobs_tensors
    if prompt is not None and request.num_prompt_logprobs is not None:
        num_prompt = len(prompt.logprobs)
        take(prompt.logprob_token_ids, prompt.logprobs, request.num_prompt_logprobs)
    if output.new_logprobs is not None and request.num_logprobs is not None:
        new = output.new_logprobs
        take(new.logprob_token_ids, new.logprobs, request.num_logprobs)
    if not logprobs:
        return None
    return scheduler_pb2.Logprobs(
        handle=request.handle,
        first_prompt_position=1 if num_prompt else 0,
        num_prompt_tokens=num_prompt,
        num_prompt_candidates=request.num_prompt_logprobs or 0,
        num_candidates=request.num_logprobs or 0,
        logprobs=floats_to_bytes(np.concatenate(logprobs)),
        candidate_token_ids=to_bytes(np.concatenate(token_ids)),
        candidate_logprobs=floats_to_bytes(np.concatenate(candidates)),
    )
