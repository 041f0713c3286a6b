"""Three replicas, a store between them, and writes that are late, lost or done twice."""

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from optimist_proposer.core.messages import UNKNOWN, Observation
from optimist_proposer.core.stored_request import LogWrite, next_write, settle_write
from tests.proposer.holding import LINE, MemoryStore, Replica, lives, opening, stored_in
from tests.proposer.text import as_text, followed, texts, tokens

NUM_REPLICAS = 3
replicas = st.integers(0, NUM_REPLICAS - 1)
LETTERS = "ab\n§"


class Replicas(RuleBasedStateMachine):
    """Whatever happens, a replica knows a beginning of the true output, or says what it lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = MemoryStore()
        self.replicas = [Replica(self.store) for _ in range(NUM_REPLICAS)]
        self.late: list[LogWrite] = []
        self.truth = ""
        self.predicted = ""

    def teardown(self) -> None:
        self.runner.close()

    @initialize(
        predicted=texts, truth=st.text(alphabet=LETTERS, min_size=20, max_size=60), replica=replicas
    )
    def begin(self, predicted: str, truth: str, replica: int) -> None:
        self.predicted, self.truth = predicted, truth
        self._open(replica)

    @rule(replica=replicas)
    def open_again(self, replica: int) -> None:
        self._open(replica)

    @rule(
        replica=replicas,
        of=replicas,
        ahead=st.sampled_from([0, 0, 0, -4, -1, 1, 4]),
        length=st.integers(1, 12),
        then=st.sampled_from(["write", "write late", "lose", "wait"]),
    )
    def observe(self, replica: int, of: int, ahead: int, length: int, then: str) -> None:
        """Tells a replica of tokens around the last one that it, or another one, knows."""
        position = min(max(self._known(of) + ahead, 0), len(self.truth))
        text = self.truth[position : position + length]
        before = self._known(replica)
        one = Observation("a", position, tokens(text))
        answer = self.runner.run(self.replicas[replica].proposer.apply([], [one], []))
        after = self._known(replica)
        if "a" in answer.gaps:
            assert after < position
            assert answer.gaps["a"] == after
            assert "a" not in answer.windows
        else:
            assert after >= position + len(text)
        if before >= position + len(text):
            assert after == before
            assert not answer.windows
        if "a" in answer.windows:
            self._check_window(replica, answer.windows["a"].base)
        self._write(self.replicas[replica], then)

    @rule(times=st.integers(1, 2))
    def end_late_write(self, times: int) -> None:
        if self.late:
            write = self.late.pop(0)
            for _ in range(times):
                settle_write(write, self.store.apply(write))

    @rule()
    def empty_the_store(self) -> None:
        self.store.requests.clear()
        self.store.sources.clear()

    @rule(replica=replicas)
    def restart(self, replica: int) -> None:
        self.replicas[replica] = Replica(self.store)

    @invariant()
    def store_has_a_beginning_of_the_truth(self) -> None:
        stored = stored_in(self.store) if "a" in self.store.requests else None
        if stored is not None:
            assert self.truth.startswith(as_text(stored.output))

    @invariant()
    def replicas_know_a_beginning_of_the_truth(self) -> None:
        for replica in self.replicas:
            live = replica.following.get("a")
            if live is not None:
                assert self.truth.startswith(as_text(live.output))

    def _open(self, replica: int) -> None:
        proposer = self.replicas[replica].proposer
        answer = self.runner.run(proposer.apply([opening("a", self.predicted)], [], []))
        assert answer.windows["a"].base == 0

    def _write(self, replica: Replica, how: str) -> None:
        if how == "write":
            self.runner.run(replica.writer.stop())
        if how == "lose":
            replica.writer._waiting.clear()
        live = replica.following.get("a")
        if how == "write late" and live is not None:
            write = next_write(live)
            if write is not None:
                self.late.append(write)

    def _known(self, replica: int) -> int:
        live = self.replicas[replica].following.get("a")
        return UNKNOWN if live is None else live.num_known

    def _check_window(self, replica: int, base: int) -> None:
        """A window is what anyone who gets the same output at once would send."""
        request = lives(self.replicas[replica].following)
        assert request.window is not None
        assert base == request.num_known
        follower = followed(LINE, self.predicted, self.truth[:base])
        assert request.window.draft == follower.propose(64, 0.0)


def test_any_interleaving_of_replicas() -> None:
    run_state_machine_as_test(
        Replicas,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
