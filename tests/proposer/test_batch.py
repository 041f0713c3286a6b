from collections.abc import Sequence

import pytest
from prometheus_client import REGISTRY

from optimist_proposer.batch import UNKNOWN, Answer, BatchProposer, Observation, Open
from optimist_proposer.core.line import LineAlgorithm
from optimist_proposer.memory import MemoryStore
from optimist_proposer.store import CursorStore, Opening, Snapshot, StoreError, Update
from tests.proposer.text import NEWLINES, as_text, tokens

LINE = LineAlgorithm(NEWLINES)
POEM = "one\ntwo\nthree\nfour\nfive\n"


def proposer_on(store: CursorStore) -> BatchProposer:
    return BatchProposer(LINE, store, window_tokens=64, max_tokens=100)


@pytest.fixture
async def proposer() -> BatchProposer:
    proposer = proposer_on(MemoryStore(max_requests=10, max_bytes=1_000_000))
    await proposer.apply([Open("a", tokens(POEM))], [], [])
    return proposer


async def observe(proposer: BatchProposer, position: int, text: str) -> Answer:
    return await proposer.apply([], [Observation("a", position, tokens(text))], [])


async def known(proposer: BatchProposer) -> int:
    """Asks by an observation that can only be a gap."""
    return (await observe(proposer, 1_000_000, "x")).gaps["a"]


async def test_open_answers_with_the_first_window() -> None:
    proposer = proposer_on(MemoryStore(10, 1_000_000))
    answer = await proposer.apply([Open("a", tokens(POEM))], [], [])
    assert as_text(answer.windows["a"].token_ids) == POEM
    assert not answer.gaps


async def test_open_and_observe_in_one_batch_answers_with_the_later_window() -> None:
    proposer = proposer_on(MemoryStore(10, 1_000_000))
    answer = await proposer.apply(
        [Open("a", tokens(POEM))], [Observation("a", 0, tokens("ONE\ntwo\n"))], []
    )
    assert as_text(answer.windows["a"].token_ids) == "three\nfour\nfive\n"


async def test_observation_as_predicted_needs_no_answer(proposer: BatchProposer) -> None:
    assert await observe(proposer, 0, "one\n") == Answer()
    assert await known(proposer) == 4


async def test_stale_and_duplicate_observations_move_nothing(proposer: BatchProposer) -> None:
    await observe(proposer, 0, "one\nTWO\nthree\n")
    for position, text in ((0, "one\nTWO\nthree\n"), (0, "one"), (4, "XXX"), (5, "")):
        assert await observe(proposer, position, text) == Answer()
    assert await known(proposer) == 14
    assert as_text((await observe(proposer, 14, "four\nX")).windows["a"].token_ids) == ""


async def test_overlap_applies_what_is_new(proposer: BatchProposer) -> None:
    await observe(proposer, 0, "ONE\ntw")
    answer = await observe(proposer, 4, "two\nth")
    window = answer.windows["a"]
    assert (window.base, window.prediction_offset) == (10, 10)
    assert as_text(window.token_ids) == "ree\nfour\nfive\n"


async def test_gap_names_what_is_known_and_moves_nothing(proposer: BatchProposer) -> None:
    await observe(proposer, 0, "one\n")
    assert await observe(proposer, 6, "o\n") == Answer(gaps={"a": 4})
    assert await observe(proposer, 4, "two\n") == Answer()


async def test_gap_behind_an_applied_observation(proposer: BatchProposer) -> None:
    observations = [
        Observation("a", 0, tokens("one\n")),
        Observation("a", 9, tokens("x")),
        Observation("a", 4, tokens("two\n")),
    ]
    assert (await proposer.apply([], observations, [])).gaps == {"a": 4}


async def test_unknown_request_is_a_gap_and_harms_no_other(proposer: BatchProposer) -> None:
    observations = [Observation("b", 0, tokens("x")), Observation("a", 0, tokens("x"))]
    answer = await proposer.apply([], observations, [])
    assert answer.gaps == {"b": UNKNOWN}
    assert not answer.windows["a"].token_ids


async def test_closed_request_is_unknown(proposer: BatchProposer) -> None:
    await proposer.apply([], [Observation("a", 0, tokens("one\n"))], ["a", "never opened"])
    assert (await observe(proposer, 4, "two\n")).gaps == {"a": UNKNOWN}


async def test_opening_again_starts_anew(proposer: BatchProposer) -> None:
    await observe(proposer, 0, "one\nX")
    answer = await proposer.apply([Open("a", tokens("six\nseven\n"))], [], [])
    assert as_text(answer.windows["a"].token_ids) == "six\nseven\n"
    assert await known(proposer) == 0


async def test_prediction_too_long_is_not_followed(
    proposer: BatchProposer, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await proposer.apply([Open("b", tokens("x" * 101))], [], [])
    assert answer == Answer()
    assert "max_prediction_tokens (100)" in caplog.text


class MovingStore(MemoryStore):
    """Another replica moves the request just before each of the first saves."""

    def __init__(self, num_moves: int, text: str) -> None:
        super().__init__(10, 1_000_000)
        self.num_moves, self.text = num_moves, text

    async def save(self, updates: Sequence[Update]) -> list[bool]:
        if self.num_moves:
            self.num_moves -= 1
            (snapshot,) = await self.load(["a"])
            assert snapshot is not None
            LINE.observe(snapshot.prediction, snapshot.cursor, tokens(self.text))
            await super().save([Update("a", snapshot.version, snapshot.cursor)])
        return await super().save(updates)


async def test_conflict_is_applied_to_what_is_there_now() -> None:
    proposer = proposer_on(MovingStore(1, "ON"))
    await proposer.apply([Open("a", tokens(POEM))], [], [])
    answer = await observe(proposer, 0, "ONE\ntwo\n")
    assert as_text(answer.windows["a"].token_ids) == "three\nfour\nfive\n"
    assert await known(proposer) == 8


async def test_conflict_with_a_replica_that_knows_more_moves_nothing() -> None:
    proposer = proposer_on(MovingStore(1, "one\ntwo\n"))
    await proposer.apply([Open("a", tokens(POEM))], [], [])
    assert await observe(proposer, 0, "one\n") == Answer()
    assert await known(proposer) == 8


async def test_second_conflict_reports_nothing() -> None:
    proposer = proposer_on(MovingStore(2, "X"))
    await proposer.apply([Open("a", tokens(POEM))], [], [])
    assert await observe(proposer, 0, "XXYZ\n") == Answer()
    assert await known(proposer) == 2


class FailingStore(MemoryStore):
    def __init__(self, method: str) -> None:
        super().__init__(10, 1_000_000)
        self.method = method

    def _fail(self, method: str) -> None:
        if method == self.method:
            raise StoreError("gone")

    async def open(self, openings: Sequence[Opening]) -> None:
        self._fail("open")
        await super().open(openings)

    async def load(self, request_ids: Sequence[str]) -> list[Snapshot | None]:
        self._fail("load")
        return await super().load(request_ids)

    async def save(self, updates: Sequence[Update]) -> list[bool]:
        self._fail("save")
        return await super().save(updates)

    async def close(self, request_ids: Sequence[str]) -> None:
        self._fail("close")
        await super().close(request_ids)


@pytest.mark.parametrize("method", ["open", "load", "save"])
async def test_store_out_of_reach_is_a_gap_and_is_logged_once(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = proposer_on(FailingStore(method))
    for _ in range(3):
        answer = await proposer.apply(
            [Open("a", tokens(POEM))], [Observation("a", 0, tokens("X"))], []
        )
        assert answer == Answer(gaps={"a": UNKNOWN})
    assert caplog.text.count("no drafts for now: gone") == 1


async def test_close_that_fails_takes_nothing_from_the_answer() -> None:
    proposer = proposer_on(FailingStore("close"))
    answer = await proposer.apply([Open("a", tokens(POEM))], [], ["b"])
    assert as_text(answer.windows["a"].token_ids) == POEM


async def test_what_happens_is_counted(proposer: BatchProposer) -> None:
    def counts() -> list[float]:
        names = ["observations", "windows", "gaps", "alignments", "losses"]
        values = [REGISTRY.get_sample_value(f"optimist_proposer_{name}_total") for name in names]
        values.append(REGISTRY.get_sample_value("optimist_proposer_alignment_seconds_count"))
        return [value or 0 for value in values]

    before = counts()
    await observe(proposer, 0, "ONE\ntwo\nTHREE\n")
    await observe(proposer, 99, "x")
    grown = [after - start for after, start in zip(counts(), before, strict=True)]
    assert grown == [2, 1, 1, 3, 2, 1]
