import asyncio
from array import array
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest

from optimist.proposer.v1 import proposer_pb2, proposer_pb2_grpc
from optimist.proposer.v1.proposer_pb2 import Observation, Open, ProposeRequest
from optimist_aligner.drafting.draft import FLOAT32, Draft
from optimist_aligner.text.sources import INT32
from optimist_common.columns import floats_from_bytes, from_bytes, to_bytes
from optimist_common.network.channel import open_channel
from optimist_common.network.server import GrpcServer
from optimist_proposer.batch import BatchProposer
from optimist_proposer.core.live_requests import SentWindow
from optimist_proposer.core.messages import Answer
from optimist_proposer.servicer import ProposerServicer
from tests.proposer.holding import following
from tests.proposer.text import tokens

if TYPE_CHECKING:
    # Exists in the stub's types only.
    from optimist.proposer.v1.proposer_pb2_grpc import ProposerServiceAsyncStub as Stub

POEM = "one\ntwo\nthree\nfour\n"
MAX_BATCH_SIZE = 4


@pytest.fixture
async def stub() -> AsyncIterator["Stub"]:
    server = GrpcServer("127.0.0.1", 0)
    proposer = BatchProposer(following())
    proposer_pb2_grpc.add_ProposerServiceServicer_to_server(
        ProposerServicer(proposer, MAX_BATCH_SIZE, 128), server.server
    )
    port = await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield proposer_pb2_grpc.ProposerServiceStub(channel)
    await server.stop()


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
        ProposeRequest(batch=11, closed_request_ids=["a"]),
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


async def test_requests_at_once_do_not_mix(
    stub: "Stub",
) -> None:
    async def follow(name: str) -> str:
        responses = await propose(
            stub,
            ProposeRequest(opens=[opened(name, f"{name}\nnext {name}\n")]),
            ProposeRequest(observations=[observation(name, 0, f"!\n{name}\n")]),
        )
        return window_text(responses[-1].windows[0])

    names = ["a", "b", "c", "d"]
    assert await asyncio.gather(*map(follow, names)) == [f"next {name}\n" for name in names]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Open(predicted_token_ids=b""), "opens.request_id"),
        (Open(request_id="b", tenant="x" * 257), "opens.tenant"),
        (Open(request_id="b", prompt_token_ids=b"1"), "opens.prompt"),
        (Open(request_id="b", num_predicted_tokens=b"123"), "opens.num_predicted_tokens"),
        (Open(request_id="b", num_predicted_tokens=to_bytes([1])), "opens.num_predicted_tokens"),
        (
            Open(request_id="b", num_predicted_tokens=to_bytes([1, -1])),
            "opens.num_predicted_tokens",
        ),
        (Open(request_id="b", predicted_token_ids=b"12345"), "opens.predicted_token_ids"),
        (Observation(request_id="a", token_ids=b"123"), "observations.token_ids"),
        (Observation(request_id="a", position=-1), "observations.position"),
        (observation("", 0, "x"), "observations.request_id"),
        (["x" * 257], "closed_request_ids"),
        (["x"] * (MAX_BATCH_SIZE + 1), "max_batch_size"),
    ],
)
async def test_malformed_batch_ends_its_stream_and_names_the_field(
    stub: "Stub", message: Open | Observation | list[str], field: str
) -> None:
    if isinstance(message, list):
        request = ProposeRequest(closed_request_ids=message)
    elif isinstance(message, Open):
        request = ProposeRequest(opens=[message])
    else:
        request = ProposeRequest(observations=[message])
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await propose(stub, request)
    assert info.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert field in (info.value.details() or "")
    (response,) = await propose(stub, ProposeRequest(opens=[opened("a", POEM)]))
    assert window_text(response.windows[0]) == POEM


async def test_prediction_too_long_is_refused(stub: "Stub") -> None:
    request = ProposeRequest(opens=[opened("long", "x" * 101), opened("a", POEM)])
    (response,) = await propose(stub, request)
    assert [window.request_id for window in response.windows] == ["a"]
    (refusal,) = response.refusals
    assert refusal.request_id == "long"
    assert refusal.reason.startswith("predicted_token_ids: 101 tokens")


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
        parents, positions = array(INT32, [-1, 0, 0]), array(INT32, [7, -1, -5])
        values = array(FLOAT32, [0.5, 0.25, 0.125])
        return Answer({"a": SentWindow(5, Draft(tokens("abc"), parents, positions, values))})


async def test_tree_is_sent_node_by_node() -> None:
    server = GrpcServer("127.0.0.1", 0)
    proposer_pb2_grpc.add_ProposerServiceServicer_to_server(
        ProposerServicer(BranchingProposer(following()), MAX_BATCH_SIZE, 128), server.server
    )
    async with open_channel(f"127.0.0.1:{await server.start()}") as channel:
        connected = proposer_pb2_grpc.ProposerServiceStub(channel)
        (response,) = await propose(connected, ProposeRequest(batch=1))
    await server.stop()
    (window,) = response.windows
    assert (window.request_id, window.base, window_text(window)) == ("a", 5, "abc")
    assert from_bytes(window.parents).tolist() == [-1, 0, 0]
    assert from_bytes(window.prediction_positions).tolist() == [7, -1, -1]
    assert from_bytes(window.prompt_positions).tolist() == [0, 0, 4]
    assert floats_from_bytes(window.values).tolist() == [0.5, 0.25, 0.125]
