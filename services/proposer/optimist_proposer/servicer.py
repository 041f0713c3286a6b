"""The gRPC face of the proposer: translates messages, and decides nothing."""

from array import array
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np

from optimist.proposer.v1 import proposer_pb2, proposer_pb2_grpc
from optimist_common.columns import from_bytes, to_bytes
from optimist_proposer.batch import Answer, BatchProposer, Observation, Open
from optimist_proposer.core.lines import INT32
from optimist_proposer.core.window import Window

_MAX_REQUEST_ID_LENGTH = 256


class MalformedError(ValueError):
    """A message that breaks the contract; the text names the field."""


class ProposerServicer(proposer_pb2_grpc.ProposerServiceServicer):
    """Serves Propose."""

    def __init__(self, proposer: BatchProposer, max_batch_size: int) -> None:
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
                f"more than max_batch_size ({self._max_batch_size})"
            )
        opens = [
            Open(
                _request_id("opens.request_id", item.request_id),
                _tokens("opens.predicted_token_ids", item.predicted_token_ids),
            )
            for item in request.opens
        ]
        observations = [_observation(item) for item in request.observations]
        closes = [_request_id("closed_request_ids", item) for item in request.closed_request_ids]
        return opens, observations, closes


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
        column = from_bytes(data)
    except ValueError:
        raise MalformedError(f"{name}: {len(data)} bytes are no int32 column") from None
    return array(INT32, column.astype(np.intc, copy=False).tobytes())


def _encode(batch: int, answer: Answer) -> proposer_pb2.ProposeResponse:
    return proposer_pb2.ProposeResponse(
        batch=batch,
        windows=[_window(request_id, window) for request_id, window in answer.windows.items()],
        gaps=[
            proposer_pb2.Gap(request_id=request_id, num_known_tokens=num_known)
            for request_id, num_known in answer.gaps.items()
        ],
    )


def _window(request_id: str, window: Window) -> proposer_pb2.Window:
    return proposer_pb2.Window(
        request_id=request_id,
        epoch=window.epoch,
        base=window.base,
        prediction_offset=window.prediction_offset,
        token_ids=_column(window.token_ids),
        alternatives=[
            proposer_pb2.Alternative(
                offset=other.offset,
                prediction_offset=other.prediction_offset,
                token_ids=_column(other.token_ids),
            )
            for other in window.alternatives
        ],
    )


def _column(token_ids: "array[int]") -> bytes:
    return to_bytes(np.frombuffer(token_ids, dtype=np.intc))
