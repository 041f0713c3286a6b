"""A proposer as a process serves two requests, of which one has anything in Redis."""

from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import NamedTuple

import grpc
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis import Redis

from optimist.proposer.v1 import proposer_pb2_grpc
from optimist.proposer.v1.proposer_pb2 import Observation, Open, ProposeRequest, Window
from optimist_aligner.text.sources import INT32, Sources
from optimist_common.columns import to_bytes
from optimist_proposer.core.sources import SourceName, name_sources, pack_sources
from optimist_proposer.core.stored_request import StoredRequest, pack_number
from tests.redis_server import RedisServer
from tests.stack import MODEL_FLAG, Service, read_metrics, start, wait_until

PREFIX = "optimist:proposer"
PREDICTION = array(INT32, range(300, 500))
OUTPUT = PREDICTION[:40] + array(INT32, [7, 8, 9]) + PREDICTION[60:90]
BESIDE = Sources([PREDICTION[::-1]])
BESIDE_OUTPUT = BESIDE.token_ids[:50]
MORE_BYTES = 150_000_000
_numbers = count()


class Hostile(NamedTuple):
    """The proposer and its Redis."""

    proposer: Service
    redis: "Redis"
    channel: grpc.Channel

    def propose(self, **fields: object) -> dict[str, Window]:
        """Sends one batch; returns the windows."""
        stub = proposer_pb2_grpc.ProposerServiceStub(self.channel)
        (response,) = stub.Propose(iter([ProposeRequest(batch=1, **fields)]), timeout=60)  # type: ignore[arg-type]
        return {window.request_id: window for window in response.windows}

    def peak_bytes(self) -> int:
        """Returns the most memory that the proposer has had."""
        status = Path(f"/proc/{self.proposer.pid}/status").read_text().split("VmHWM:")[1]
        return int(status.split()[0]) * 1024


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer(tmp_path_factory.mktemp("redis")))
        server.kill()
        options = ("--store", server.url, "--redis-timeout-ms", "5000")
        # It starts while Redis is away.
        proposer = start(stack, "proposer", *MODEL_FLAG, *options)
        server.start()
        breaker = "optimist_proposer_redis_breaker_open"
        wait_until(lambda: not read_metrics(proposer.metrics_url)[breaker], "Redis")
        redis = stack.enter_context(Redis(port=server.port))
        yield Hostile(proposer, redis, stack.enter_context(grpc.insecure_channel(proposer.address)))
        # Nothing that Redis holds is a reason to leave it alone.
        assert read_metrics(proposer.metrics_url)[breaker] == 0


def column(token_ids: "array[int]") -> bytes:
    return to_bytes(np.frombuffer(token_ids, np.int32))


def request_key(request_id: str) -> str:
    return f"{PREFIX}:{{0}}:request:{request_id}"


def sources_key(name: SourceName) -> str:
    return f"{PREFIX}:sources:{name.tenant.hex()}:{name.content.hex()}"


def put(redis: "Redis", request_id: str, packed_sources: bytes, stored: bytes) -> SourceName:
    name = name_sources("", packed_sources)
    redis.set(sources_key(name), packed_sources)
    redis.set(request_key(request_id), stored)
    return name


def stored_request(packed_sources: bytes, output: "array[int]", num_known: int = -1) -> bytes:
    """Returns a request as it is stored, with a number of tokens that may be a lie."""
    packed = StoredRequest(b"opening_", name_sources("", packed_sources), output).pack()
    return packed if num_known < 0 else packed[:9] + pack_number(num_known) + packed[13:]


def right_request(sources: Sources, output: "array[int]") -> tuple[bytes, bytes]:
    """Returns sources and request as they are stored."""
    packed = pack_sources(sources)
    return packed, stored_request(packed, output)


RIGHT = right_request(Sources([PREDICTION]), OUTPUT)


@pytest.fixture(scope="module")
def expected(hostile: Hostile) -> bytes:
    """The window of the other request when it is served alone."""
    put(hostile.redis, "alone", *right_request(BESIDE, BESIDE_OUTPUT))
    token = column(array(INT32, [5]))
    one = Observation(request_id="alone", position=len(BESIDE_OUTPUT), token_ids=token)
    window = hostile.propose(observations=[one])["alone"].token_ids
    assert len(window) > 8
    return window


EDGES = st.sampled_from([0, 1, 3, 128, 2**28, 2**31 - 1, 2**31, 2**32 - 1])
TOKENS = st.lists(st.sampled_from([-(2**31), -2, -1, 5, 2**31 - 1]), max_size=30)


@st.composite
def changed(draw: st.DrawFn, value: bytes) -> bytes:
    """Returns a value of which some bytes are others, come twice, or are missing."""
    data = bytearray(value)
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        part = draw(st.binary(max_size=8) | st.just(bytes(data[start:end]) * 2))
        data[start:end] = part
    return bytes(data)


@st.composite
def bounds(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Returns values that are named rightly and have numbers at their bounds."""
    num_predicted = draw(EDGES | st.integers(0, 300))
    packed = b"\x01" + pack_number(num_predicted) + array(INT32, draw(TOKENS)).tobytes()
    packed = draw(st.sampled_from([packed, RIGHT[0]]))
    num_known = draw(st.just(-1) | EDGES)
    return packed, stored_request(packed, array(INT32, draw(TOKENS)), num_known)


values = (
    st.tuples(st.just(RIGHT[0]), st.binary(max_size=200))
    | st.tuples(st.just(RIGHT[0]), changed(RIGHT[1]))
    | st.tuples(changed(RIGHT[0]), st.just(RIGHT[1]))
    | changed(RIGHT[0]).map(lambda packed: (packed, stored_request(packed, OUTPUT[:3])))
    | bounds()
)
SEPARATORS = b"\x01" + bytes(4) + b"\xff" * 2_600_000
EMPTY_TEXTS = SEPARATORS, stored_request(SEPARATORS, OUTPUT[:1])


@given(values)
@settings(max_examples=20)
@example((RIGHT[0], stored_request(RIGHT[0], OUTPUT * 100_000)))
@example((RIGHT[0], stored_request(RIGHT[0], OUTPUT, 190_000_000)))
@example(EMPTY_TEXTS)
@example((bytes(50_000_000), bytes(50_000_000)))
@example((RIGHT[0], RIGHT[1][:13] + RIGHT[1][13:37] + bytes(5_000_000)))
def test_other_requests_are_served_whatever_a_value_is(
    hostile: Hostile, expected: bytes, value: tuple[bytes, bytes]
) -> None:
    number = next(_numbers)
    harmed, beside = f"harmed-{number}", f"beside-{number}"
    before = hostile.peak_bytes()
    packed, stored = value
    put(hostile.redis, harmed, packed, stored)
    # What a request names is what it gets, though it be another content.
    if len(stored) >= 37:
        hostile.redis.set(sources_key(SourceName(stored[13:21], stored[21:37])), packed)
    put(hostile.redis, beside, *right_request(BESIDE, BESIDE_OUTPUT))
    positions = {harmed: 190_000_000, beside: len(BESIDE_OUTPUT)}
    windows = hostile.propose(
        observations=[
            Observation(request_id=name, position=position, token_ids=column(array(INT32, [5])))
            for name, position in positions.items()
        ]
    )
    assert (windows[beside].base, windows[beside].token_ids) == (51, expected)
    assert hostile.peak_bytes() - before < MORE_BYTES
    assert hostile.proposer.is_running
    hostile.propose(closed_request_ids=[harmed, beside])


def as_list(redis: "Redis", key: str) -> None:
    redis.delete(key)
    redis.rpush(key, "x")


def as_short(redis: "Redis", key: str) -> None:
    redis.set(key, redis.getrange(key, 0, 10))


def as_long(redis: "Redis", key: str) -> None:
    redis.append(key, bytes(1_000_000))


@pytest.mark.parametrize("spoil", [as_list, as_short, as_long])
def test_outputs_of_others_are_stored_whatever_a_key_holds(
    hostile: Hostile, spoil: Callable[["Redis", str], None]
) -> None:
    names = [f"{kind}-{spoil.__name__}" for kind in ("harmed", "beside")]
    sources = {"harmed": PREDICTION, "beside": BESIDE.token_ids[:-1]}
    hostile.propose(
        opens=[
            Open(request_id=name, predicted_token_ids=column(sources[name.partition("-")[0]]))
            for name in names
        ]
    )
    num_known = dict.fromkeys(names, 0)

    def grow() -> None:
        ones = []
        for name in names:
            token_ids = column(array(INT32, [11]))
            ones.append(Observation(request_id=name, position=num_known[name], token_ids=token_ids))
            num_known[name] += 1
        assert set(hostile.propose(observations=ones)) <= set(names)

    def are_stored() -> bool:
        keys = [request_key(name) for name in names]
        if {hostile.redis.type(key) for key in keys} != {b"string"}:
            return False
        heads = [hostile.redis.getrange(key, 9, 12) for key in keys]
        return heads == [*map(pack_number, num_known.values())]

    for change in (lambda *_: None, spoil):
        change(hostile.redis, request_key(names[0]))
        grow()
        wait_until(are_stored, "the store")
