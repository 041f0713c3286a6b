"""A batch is answered with windows, gaps and refusals; replicas take over from each other."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from optimist_proposer.batch import BatchProposer
from optimist_proposer.core.line import LineFollower
from optimist_proposer.core.messages import UNKNOWN, Answer, Observation
from optimist_proposer.core.stored_request import StoredRequest
from optimist_proposer.store.store import StoreError
from tests.proposer.holding import (
    LIMITS,
    MemoryStore,
    Replica,
    following,
    lives,
    observation,
    opening,
)

POEM = "one\ntwo\nthree\nfour\nfive\n"


@pytest.fixture
async def proposer() -> BatchProposer:
    proposer = BatchProposer(following())
    await proposer.apply([opening("a", POEM)], [], [])
    return proposer


async def observe(proposer: BatchProposer, position: int, text: str) -> Answer:
    return await proposer.apply([], [observation(position, text)], [])


async def known(proposer: BatchProposer) -> int:
    """Asks by an observation that can only be a gap."""
    return (await observe(proposer, 1_000_000, "x")).gaps["a"]


async def test_time_limit_ends_the_request() -> None:
    held = following()
    proposer = BatchProposer(held)
    await proposer.apply([opening("a", POEM)], [], [])
    lives(held).spent_seconds = LIMITS.max_alignment_ms / 1000 + 1
    answer = await observe(proposer, 0, "X")
    assert "max_alignment_ms" in answer.refusals["a"]
    assert not answer.windows
    assert await known(proposer) == UNKNOWN
    proposer = BatchProposer(following(limits=replace(LIMITS, max_alignment_ms=0)))
    answer = await proposer.apply([opening("a", POEM)], [], [])
    assert "max_alignment_ms (0)" in answer.refusals["a"]
    assert not answer.windows


def break_algorithm(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Lets a call of the algorithm fail when the output has an X."""
    works: Any = getattr(LineFollower, call)

    def call_or_fail(self: LineFollower, *arguments: Any) -> Any:
        if ord("X") in (arguments[0] if call == "observe" else self.tail):
            raise IndexError("broken")
        return works(self, *arguments)

    monkeypatch.setattr(LineFollower, call, call_or_fail)


@pytest.mark.parametrize("call", ["observe", "propose"])
async def test_algorithm_that_fails_harms_one_request(
    call: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer = BatchProposer(following())
    await proposer.apply([opening("a", POEM), opening("b", POEM)], [], [])
    break_algorithm(monkeypatch, call)
    observations = [observation(0, "X"), observation(0, "Y", "b")]
    answer = await proposer.apply([], observations, [])
    assert "the algorithm failed" in answer.refusals["a"]
    assert set(answer.windows) == {"b"}
    assert "IndexError: broken" in caplog.text


def replicas() -> tuple[MemoryStore, Replica, Replica]:
    store = MemoryStore()
    return store, Replica(store), Replica(store)


async def opened_by(replica: Replica, *observations: Observation) -> None:
    """Opens a request at a replica, which writes it to the store."""
    await replica.proposer.apply([opening("a", POEM)], observations, [])
    await replica.writer.stop()


async def test_request_closed_elsewhere_is_unknown_and_stays_closed() -> None:
    _store, first, second = replicas()
    await opened_by(first)
    await second.proposer.apply([], [], ["a"])
    await second.writer.stop()
    await observe(first.proposer, 0, "one\n")
    await first.writer.stop()
    assert first.following.get("a") is None
    assert (await observe(second.proposer, 4, "two\n")).gaps == {"a": UNKNOWN}


@pytest.mark.parametrize("lives_here", [False, True])
async def test_log_that_the_algorithm_fails_on_makes_one_request_unknown(
    lives_here: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _store, first, second = replicas()
    opens = [opening("a", POEM), opening("b", POEM)]
    await first.proposer.apply(opens, [], [])
    await first.writer.stop()
    if lives_here:
        early = [observation(1, "x"), observation(1, "x", "b")]
        assert (await second.proposer.apply([], early, [])).gaps == {"a": 0, "b": 0}
    await first.proposer.apply([], [observation(0, "X\n"), observation(0, "ONE\n", "b")], [])
    await first.writer.stop()
    break_algorithm(monkeypatch, "observe")
    both = [observation(2, "two\n"), observation(4, "two\n", "b")]
    answer = await second.proposer.apply([], both, [])
    assert answer.gaps == {"a": UNKNOWN}
    assert not answer.refusals
    assert answer.windows["b"].base == 8
    assert "IndexError: broken" in caplog.text


class FailingStore(MemoryStore):
    async def read(self, max_tokens: Mapping[str, int]) -> Mapping[str, StoredRequest]:
        raise StoreError("gone")


async def test_store_out_of_reach_is_a_gap_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    proposer = Replica(FailingStore()).proposer
    await proposer.apply([opening("a", POEM)], [], [])
    for _ in range(3):
        answer = await proposer.apply([], [observation(0, "X"), observation(0, "X", "b")], [])
        assert answer.gaps == {"b": UNKNOWN}
    assert caplog.text.count("unknown for now: gone") == 1


async def test_refused_request_is_dropped_from_the_store() -> None:
    store = MemoryStore()
    replica = Replica(store)
    await replica.proposer.apply([opening("a", POEM)], [], [])
    await replica.writer.stop()
    answer = await replica.proposer.apply([], [observation(0, "\uffff")], [])
    assert "token_ids: token 65535" in answer.refusals["a"]
    await replica.writer.stop()
    assert store.requests == {"a": None}
