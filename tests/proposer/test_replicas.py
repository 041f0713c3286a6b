"""Two replicas take turns with the same requests, and one of them lags now and then."""

import asyncio
import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from optimist_proposer.batch import UNKNOWN, BatchProposer, Observation, Open
from optimist_proposer.core.algorithm import Algorithm
from optimist_proposer.core.anchor import AnchorAlgorithm
from optimist_proposer.core.cursor import LOST, Cursor
from optimist_proposer.core.line import LineAlgorithm
from optimist_proposer.core.window import Window
from optimist_proposer.memory import MemoryStore
from optimist_proposer.store import CursorStore, Snapshot, Update
from tests.proposer.stores import redis_store
from tests.proposer.text import NEWLINES, observed, texts, tokens
from tests.redis_server import RedisServer

_prefixes = itertools.count()
WINDOW = 8


class Replicas(RuleBasedStateMachine):
    """Compares a request in shared stores with its whole output observed at once."""

    algorithm: Algorithm

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stores = self.new_stores()
        self.replicas = [
            BatchProposer(self.algorithm, store, WINDOW, 1000) for store in self.stores
        ]
        self.predicted: str | None = None
        self.output = ""
        self.window: Window | None = None
        self.late: tuple[Snapshot, int] | None = None

    def new_stores(self) -> tuple[CursorStore, CursorStore]:
        raise NotImplementedError

    def teardown(self) -> None:
        for store in self.stores:
            self.runner.run(store.stop())
        self.runner.close()

    @rule(predicted=texts, replica=st.integers(0, 1))
    def open(self, predicted: str, replica: int) -> None:
        answer = self.runner.run(
            self.replicas[replica].apply([Open("a", tokens(predicted))], [], [])
        )
        self.predicted, self.output = predicted, ""
        self.window = answer.windows["a"]

    @rule(replica=st.integers(0, 1))
    def close(self, replica: int) -> None:
        self.runner.run(self.replicas[replica].apply([], [], ["a"]))
        self.predicted, self.window = None, None

    @rule(
        replica=st.integers(0, 1),
        text=texts,
        follow=st.integers(0, 9),
        start=st.integers(-3, 3),
    )
    def observe(self, replica: int, text: str, follow: int, start: int) -> None:
        """Observes the window's next tokens and then others, from before, at or behind the end."""
        known = len(self.output)
        if self.window is not None:
            ahead = self.window.token_ids[known - self.window.base :][:follow]
            text = "".join("§" if token == 1000 else chr(token) for token in ahead) + text
        position = max(known + start, 0)
        sent = self.output[position:] + text if position <= known else text
        answer = self.runner.run(
            self.replicas[replica].apply([], [Observation("a", position, tokens(sent))], [])
        )
        if self.predicted is None:
            assert answer.gaps == {"a": UNKNOWN}
        elif position > known:
            assert answer.gaps == {"a": known}
        else:
            assert not answer.gaps
            self.output += text
        if self.predicted is None or position > known:
            assert not answer.windows
        self.window = answer.windows.get("a", self.window)

    @rule(replica=st.integers(0, 1))
    def begin_late_write(self, replica: int) -> None:
        (snapshot,) = self.runner.run(self.stores[replica].load(["a"]))
        if snapshot is not None:
            self.algorithm.observe(snapshot.prediction, snapshot.cursor, tokens("stale"))
            self.late = (snapshot, replica)

    @precondition(lambda self: self.late is not None)
    @rule()
    def end_late_write(self) -> None:
        assert self.late is not None
        (late, replica), self.late = self.late, None
        (current,) = self.runner.run(self.stores[replica].load(["a"]))
        update = Update("a", late.version, late.cursor)
        (saved,) = self.runner.run(self.stores[replica].save([update]))
        assert saved == (current is not None and current.version == late.version)
        if saved:
            self.output += "stale"
            # Its window was never sent; the next one replaces what the cursor now contradicts.
            self.window = None

    @invariant()
    def cursor_is_that_of_the_output(self) -> None:
        for store in self.stores:
            (snapshot,) = self.runner.run(store.load(["a"]))
            if self.predicted is None:
                assert snapshot is None
                continue
            assert snapshot is not None
            assert _place(snapshot.cursor) == _place(self._expected())
            self._check_window(snapshot)

    def _expected(self) -> Cursor:
        assert self.predicted is not None
        return observed(self.algorithm, self.predicted, self.output)

    def _check_window(self, snapshot: Snapshot) -> None:
        if self.window is None:
            return
        cursor = snapshot.cursor
        ahead = self.window.token_ids[cursor.num_known - self.window.base :]
        if cursor.offset == LOST:
            assert not ahead
        else:
            assert ahead == snapshot.prediction.token_ids[cursor.offset :][: len(ahead)]


def _place(cursor: Cursor) -> tuple[object, ...]:
    """Returns all of a cursor but what was sent, which depends on the observations' sizes."""
    return (
        cursor.epoch,
        cursor.num_known,
        cursor.offset,
        cursor.line,
        cursor.lines,
        cursor.lost_at,
        cursor.matched_from,
        cursor.tail,
    )


ALGORITHMS = [AnchorAlgorithm(NEWLINES), LineAlgorithm(NEWLINES)]


def run(machine: type[Replicas], max_examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


@pytest.mark.parametrize("chosen", ALGORITHMS, ids=["anchor", "line"])
def test_replicas_on_memory(chosen: Algorithm) -> None:
    class OnMemory(Replicas):
        algorithm = chosen

        def new_stores(self) -> tuple[CursorStore, CursorStore]:
            store = MemoryStore(10, 1_000_000)
            return store, store

    run(OnMemory, max_examples=40)


@pytest.mark.parametrize("chosen", ALGORITHMS, ids=["anchor", "line"])
def test_replicas_on_redis(redis_server: RedisServer, chosen: Algorithm) -> None:
    class OnRedis(Replicas):
        algorithm = chosen

        def new_stores(self) -> tuple[CursorStore, CursorStore]:
            prefix = f"replicas-{next(_prefixes)}"
            return redis_store(redis_server.url, prefix), redis_store(redis_server.url, prefix)

    run(OnRedis, max_examples=20)
