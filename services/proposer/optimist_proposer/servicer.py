"""The gRPC face of the proposer: translates messages, and decides nothing."""

from array import array
from collections.abc import AsyncIterator
from itertools import accumulate, pairwise
from typing import Any

import grpc
import numpy as np

from optimist.proposer.v1 import proposer_pb2, proposer_pb2_grpc
from optimist_aligner.text.sources import NO_POSITION
from optimist_common.columns import array_from_bytes, from_bytes, to_bytes
from optimist_proposer.batch import BatchProposer
from optimist_proposer.core.live_requests import SentWindow
from optimist_proposer.core.messages import Answer, Observation, Open

_MAX_REQUEST_ID_LENGTH = 256
_MAX_TENANT_BYTES = 256
_NEGATIVE = 0xFF
"""Highest byte of a small negative number."""


class MalformedError(ValueError):
    """A message that breaks the contract; the text names the field."""


class ProposerServicer(proposer_pb2_grpc.ProposerServiceServicer):
    """Serves Propose."""

    def __init__(self, proposer: BatchProposer, max_batch_size: int) -> None:
        """Takes what answers batches, and their most items."""
        self._proposer, self._max_batch_size = proposer, max_batch_size

    async def Propose(  # noqa: N802
        self,
        request_iterator: AsyncIterator[proposer_pb2.ProposeRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[proposer_pb2.ProposeResponse]:
        """Answers each batch in turn; a malformed one ends the stream with INVALID_ARGUMENT."""
        async for request in request_iterator:
            try:
                opens, observations, closes = self._decode(request)
            except MalformedError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            answer = await self._proposer.apply(opens, observations, closes)
            yield _encode(request.batch, answer)

    def _decode(
        self, request: proposer_pb2.ProposeRequest
    ) -> tuple[list[Open], list[Observation], list[str]]:
        size = len(request.opens) + len(request.observations) + len(request.closed_request_ids)
        if size > self._max_batch_size:
            raise MalformedError(
                f"opens, observations and closed_request_ids: {size} together, "
                f"more than {self._max_batch_size}"
            )
        opens = [_open(item) for item in request.opens]
        observations = [_observation(item) for item in request.observations]
        closes = [_request_id("closed_request_ids", item) for item in request.closed_request_ids]
        return opens, observations, closes


def _open(item: proposer_pb2.Open) -> Open:
    request_id = _request_id("opens.request_id", item.request_id)
    if len(item.tenant.encode()) > _MAX_TENANT_BYTES:
        raise MalformedError(f"opens.tenant: more than {_MAX_TENANT_BYTES} bytes")
    token_ids = _tokens("opens.predicted_token_ids", item.predicted_token_ids)
    lengths = _tokens("opens.num_predicted_tokens", item.num_predicted_tokens)
    prompt = _tokens("opens.prompt_token_ids", item.prompt_token_ids)
    predictions = _split(token_ids, lengths)
    return Open(request_id, predictions, prompt, item.tenant, item.trace_parent)


def _split(token_ids: "array[int]", lengths: "array[int]") -> "list[array[int]]":
    """Returns the single predictions."""
    if not lengths:
        return [token_ids]
    if min(lengths) < 0 or sum(lengths) != len(token_ids):
        raise MalformedError(
            f"opens.num_predicted_tokens: must sum up to the {len(token_ids)} of "
            f"predicted_token_ids, not to {sum(lengths)}, none negative"
        )
    ends = list(accumulate(lengths, initial=0))
    return [token_ids[start:end] for start, end in pairwise(ends)]


def _observation(item: proposer_pb2.Observation) -> Observation:
    if item.position < 0:
        raise MalformedError(f"observations.position: must not be negative, not {item.position}")
    return Observation(
        _request_id("observations.request_id", item.request_id),
        item.position,
        _tokens("observations.token_ids", item.token_ids),
    )


def _request_id(name: str, value: str) -> str:
    if not 0 < len(value) <= _MAX_REQUEST_ID_LENGTH:
        raise MalformedError(
            f"{name}: must have 1 to {_MAX_REQUEST_ID_LENGTH} characters, not {len(value)}"
        )
    return value


def _tokens(name: str, data: bytes) -> "array[int]":
    try:
        return array_from_bytes(data)
    except ValueError:
        raise MalformedError(f"{name}: {len(data)} bytes are no int32 column") from None


def _encode(batch: int, answer: Answer) -> proposer_pb2.ProposeResponse:
    response = proposer_pb2.ProposeResponse(
        batch=batch,
        gaps=[
            proposer_pb2.Gap(request_id=request_id, num_known_tokens=num_known)
            for request_id, num_known in answer.gaps.items()
        ],
        refusals=[
            proposer_pb2.Refusal(request_id=request_id, reason=reason)
            for request_id, reason in answer.refusals.items()
        ],
    )
    # Filled where they belong: otherwise each is copied there.
    for request_id, window in answer.windows.items():
        _write_window(response.windows.add(), request_id, window)
    return response


def _write_window(message: proposer_pb2.Window, request_id: str, window: SentWindow) -> None:
    token_ids, parents, positions, values = window.draft.pack()
    # Most have no negative numbers, and one look at the highest bytes says so.
    if _NEGATIVE in positions[3::4]:
        column = from_bytes(positions)
        if column.min() < NO_POSITION:
            positions = to_bytes(np.maximum(column, NO_POSITION))
            message.prompt_positions = to_bytes(np.maximum(NO_POSITION - column, 0))
    message.request_id, message.base = request_id, window.base
    message.token_ids, message.prediction_positions, message.values = token_ids, positions, values
    if parents:
        message.parents = parents
