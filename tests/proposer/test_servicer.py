"""Messages become batches and answers; a malformed one ends its stream."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

from optimist.proposer.v1 import proposer_pb2, proposer_pb2_grpc
from optimist.proposer.v1.proposer_pb2 import Observation, Open, ProposeRequest
from optimist_common.columns import floats_from_bytes, from_bytes, to_bytes
from optimist_common.network.channel import open_channel
from optimist_common.network.server import GrpcServer
from optimist_proposer.batch import BatchProposer
from optimist_proposer.core.live_requests import SentWindow
from optimist_proposer.core.messages import Answer
from optimist_proposer.servicer import ProposerServicer
from tests.proposer.holding import POEM, following
from tests.proposer.text import draft_of, tokens

if TYPE_CHECKING:
    # Exists in the stub's types only.
    from optimist.proposer.v1.proposer_pb2_grpc import ProposerServiceAsyncStub as Stub

MAX_BATCH_SIZE = 4


@asynccontextmanager
async def serving(proposer: BatchProposer) -> AsyncIterator["Stub"]:
    server = GrpcServer("127.0.0.1", 0)
    proposer_pb2_grpc.add_ProposerServiceServicer_to_server(
        ProposerServicer(proposer, MAX_BATCH_SIZE), server.server
    )
    async with open_channel(f"127.0.0.1:{await server.start()}") as channel:
        yield proposer_pb2_grpc.ProposerServiceStub(channel)
    await server.stop()


@pytest.fixture
async def stub() -> AsyncIterator["Stub"]:
    async with serving(BatchProposer(following())) as connected:
        yield connected


async def propose(stub: "Stub", *requests: ProposeRequest) -> list[proposer_pb2.ProposeResponse]:
    async def stream() -> AsyncIterator[ProposeRequest]:
        for request in requests:
            yield request

    return [response async for response in stub.Propose(stream())]


def column(text: str) -> bytes:
    return to_bytes(np.frombuffer(tokens(text), dtype=np.int32))


def window_text(window: proposer_pb2.Window) -> str:
    return "".join(chr(token) for token in from_bytes(window.token_ids))


def opened(request_id: str, text: str) -> Open:
    return Open(request_id=request_id, predicted_token_ids=column(text))


def observation(request_id: str, position: int, text: str) -> Observation:
    return Observation(request_id=request_id, position=position, token_ids=column(text))


async def test_life_of_a_request(stub: "Stub") -> None:
    responses = await propose(
        stub,
        ProposeRequest(batch=7, opens=[opened("a", POEM)]),
        ProposeRequest(batch=8, observations=[observation("a", 0, "one\n")]),
        ProposeRequest(batch=9, observations=[observation("a", 4, "T")]),
        ProposeRequest(batch=10, observations=[observation("a", 5, "WO\nthree\nf")]),
        ProposeRequest(batch=11, closed_request_ids=["a", "never opened"]),
        ProposeRequest(batch=12, observations=[observation("a", 15, "o")]),
    )
    assert [response.batch for response in responses] == [7, 8, 9, 10, 11, 12]
    first, followed, lost, anchored, closed, unknown = responses
    assert window_text(first.windows[0]) == POEM
    assert first.windows[0].base == 0
    assert first.windows[0].parents == b""
    positions = from_bytes(first.windows[0].prediction_positions)
    assert positions.tolist() == list(range(len(POEM)))
    assert first.windows[0].prompt_positions == b""
    assert len(floats_from_bytes(first.windows[0].values)) == len(POEM)
    assert not followed.windows
    assert (lost.windows[0].request_id, lost.windows[0].token_ids) == ("a", b"")
    assert window_text(anchored.windows[0]) == "our\n"
    assert anchored.windows[0].base == 15
    assert from_bytes(anchored.windows[0].prediction_positions).tolist() == [15, 16, 17, 18]
    assert not closed.windows
    assert [(gap.request_id, gap.num_known_tokens) for gap in unknown.gaps] == [("a", -1)]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"opens": [Open()]}, "opens.request_id"),
        ({"opens": [Open(request_id="b", tenant="x" * 257)]}, "opens.tenant"),
        *(
            ({"opens": [Open(request_id="b", num_predicted_tokens=lengths)]}, "opens.num_predicted")
            for lengths in (b"123", to_bytes([1]), to_bytes([1, -1]))
        ),
        ({"observations": [Observation(request_id="a", token_ids=b"1")]}, "observations.token_ids"),
        ({"observations": [Observation(request_id="a", position=-1)]}, "observations.position"),
        ({"observations": [observation("", 0, "x")]}, "observations.request_id"),
        ({"closed_request_ids": ["x" * 257]}, "closed_request_ids"),
        ({"closed_request_ids": ["x"] * (MAX_BATCH_SIZE + 1)}, "5 together, more than 4"),
    ],
)
async def test_malformed_batch_ends_its_stream_and_names_the_field(
    stub: "Stub", message: dict[str, Any], field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await propose(stub, ProposeRequest(**message))
    assert info.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert field in (info.value.details() or "")
    (response,) = await propose(stub, ProposeRequest(opens=[opened("a", POEM)]))
    assert window_text(response.windows[0]) == POEM


async def test_prediction_too_long_is_refused_and_others_are_not(stub: "Stub") -> None:
    late = observation("long", 0, "x")
    response, unknown = await propose(
        stub,
        ProposeRequest(opens=[opened("long", "x" * 101), opened("a", POEM)], observations=[late]),
        ProposeRequest(observations=[late]),
    )
    assert [window.request_id for window in response.windows] == ["a"]
    (refusal,) = response.refusals
    assert refusal.request_id == "long"
    assert refusal.reason.startswith("predicted_token_ids: 101 tokens")
    assert "max_prediction_tokens (100)" in refusal.reason
    assert not response.gaps
    assert [(gap.request_id, gap.num_known_tokens) for gap in unknown.gaps] == [("long", -1)]


async def test_several_predictions_and_the_prompt_are_sources(stub: "Stub") -> None:
    several = Open(
        request_id="a",
        predicted_token_ids=column("one\ntwo\nsix\nseven\n"),
        num_predicted_tokens=to_bytes([8, 0, 10]),
        prompt_token_ids=column("prompt\n"),
        tenant="somebody",
    )
    first, second = await propose(
        stub,
        ProposeRequest(opens=[several]),
        ProposeRequest(observations=[observation("a", 0, "six\n")]),
    )
    assert window_text(first.windows[0]) == "one\ntwo\n"
    (window,) = second.windows
    assert window_text(window) == "seven\n"
    assert from_bytes(window.prediction_positions).tolist() == list(range(12, 18))


class BranchingProposer(BatchProposer):
    """Answers each batch with a tree."""

    async def apply(self, opens: object, observations: object, closes: object) -> Answer:
        draft = draft_of(tokens("abc"), [-1, 0, 0], [7, -1, -5], [0.5, 0.25, 0.125])
        return Answer({"a": SentWindow(5, draft)})


async def test_tree_is_sent_node_by_node() -> None:
    async with serving(BranchingProposer(following())) as connected:
        (response,) = await propose(connected, ProposeRequest(batch=1))
    (window,) = response.windows
    assert (window.request_id, window.base, window_text(window)) == ("a", 5, "abc")
    columns = (window.parents, window.prediction_positions, window.prompt_positions)
    assert [from_bytes(each).tolist() for each in columns] == [[-1, 0, 0], [7, -1, -1], [0, 0, 4]]
    assert floats_from_bytes(window.values).tolist() == [0.5, 0.25, 0.125]
