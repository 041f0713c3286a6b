"""What a replica reads of others is checked as what a scheduler sends, and costs one request."""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from optimist_aligner.text.sources import INT32, Sources
from optimist_proposer.core.messages import UNKNOWN
from optimist_proposer.core.sources import WrongKind, WrongValueError, name_sources, pack_sources
from optimist_proposer.core.stored_request import (
    MAX_STORED_TOKENS,
    OPENING_BYTES,
    StoredRequest,
    pack_number,
)
from tests.proposer.holding import MemoryStore, Replica, lives, observation, opening, stored_in
from tests.proposer.text import as_text, tokens

POEM = "one\ntwo\nthree\nfour\n"
BESIDE = "six\nseven\n"


def with_sources(*predictions: str, prompt: str = "") -> Callable[[MemoryStore], None]:
    """Stores request and sources as if they were opened so, by who does not check anything."""

    def change(store: MemoryStore) -> None:
        value = pack_sources(Sources([tokens(text) for text in predictions], tokens(prompt)))
        _store_sources(store, value)

    return change


def _store_sources(store: MemoryStore, value: bytes) -> None:
    name = name_sources("", value)
    store.sources[name] = value
    stored = replace(stored_of(store), source_name=name, output=tokens("onXX"))
    store.requests["a"] = stored.pack()


def stored_of(store: MemoryStore, request_id: str = "a") -> StoredRequest:
    stored = stored_in(store, request_id)
    assert stored is not None
    return stored


def with_output(*token_ids: int, num_known: int | None = None) -> Callable[[MemoryStore], None]:
    def change(store: MemoryStore) -> None:
        packed = replace(stored_of(store), output=array(INT32, token_ids)).pack()
        number = len(token_ids) if num_known is None else num_known
        store.requests["a"] = packed[:OPENING_BYTES] + pack_number(number) + packed[13:]

    return change


def other_content(store: MemoryStore) -> None:
    store.sources[stored_of(store).source_name] = pack_sources(Sources([tokens("other\n")]))


def negative_token(store: MemoryStore) -> None:
    value = pack_sources(Sources([tokens("ab")]))
    _store_sources(store, value.replace(b"a\0\0\0", b"\xfb\xff\xff\xff"))


def count(kind: WrongKind) -> float:
    sample = REGISTRY.get_sample_value("optimist_proposer_redis_wrong_values_total", {"kind": kind})
    return sample or 0


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (with_output(1, num_known=2**32 - 1), WrongKind.SIZE),
        (lambda store: store.requests.update(a=bytes(50)), WrongKind.FORMAT),
        (with_output(1, 2, 3, 5000), WrongKind.TOKEN),
        (with_output(1, 2, 3, -1), WrongKind.TOKEN),
        (other_content, WrongKind.DIGEST),
        (with_sources("x" * 101), WrongKind.LIMIT),
        (with_sources("a", prompt="b" * 21), WrongKind.LIMIT),
        (negative_token, WrongKind.LIMIT),
    ],
)
async def test_wrong_value_is_counted_and_costs_one_request(
    change: Callable[[MemoryStore], None], kind: WrongKind, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    first, second = Replica(store), Replica(store)
    both = [observation(0, "one\n"), observation(0, "six\n", "b")]
    await first.proposer.apply([opening("a", POEM), opening("b", BESIDE)], both, [])
    await first.writer.stop()
    change(store)
    before = count(kind)
    # Others of a kind are counted, and one line tells of them all.
    both = [observation(4, "two\n"), observation(4, "se", "b")]
    answers = [await second.proposer.apply([], both, []) for _ in range(2)]
    assert [answer.gaps for answer in answers] == [{"a": UNKNOWN}] * 2
    assert as_text(answers[0].windows["b"].draft.token_ids) == "ven\n"
    assert count(kind) == before + 2
    # The scheduler opens it anew, and that is stored.
    again = [observation(0, "X\none\n")]
    answer = await second.proposer.apply([opening("a", POEM)], again, [])
    assert as_text(answer.windows["a"].draft.token_ids) == "two\nthree\nfour\n"
    await second.writer.stop()
    third = Replica(store)
    answer = await third.proposer.apply([], [observation(6, "two\n")], [])
    assert as_text(answer.windows["a"].draft.token_ids) == "three\nfour\n"
    assert caplog.text.count(f"is wrong ({kind})") == 1


async def test_what_is_known_here_stays_when_the_log_is_another() -> None:
    store = MemoryStore()
    first, second = Replica(store), Replica(store)
    await first.proposer.apply([opening("a", POEM)], [observation(0, "one\n")], [])
    await first.writer.stop()
    await second.proposer.apply([], [observation(4, "t")], [])
    store.requests["a"] = replace(stored_of(store), output=tokens("ONE\ntwo\n")).pack()
    answer = await second.proposer.apply([], [observation(8, "x")], [])
    assert answer.gaps == {"a": 5}
    assert as_text(lives(second.following).output) == "one\nt"


async def test_request_that_is_opened_while_the_store_is_read_is_the_new_one() -> None:
    class SlowStore(MemoryStore):
        async def read(
            self, max_tokens: Mapping[str, int]
        ) -> Mapping[str, StoredRequest | WrongValueError]:
            found = await super().read(max_tokens)
            if "a" in max_tokens:
                await second.proposer.apply([opening("a", "new\n")], [], [])
            return found

    store = SlowStore()
    first, second = Replica(store), Replica(store)
    await first.proposer.apply([opening("a", POEM)], [observation(0, "one\n")], [])
    await first.writer.stop()
    assert (await second.proposer.apply([], [observation(4, "t")], [])).gaps == {"a": 0}
    assert as_text(lives(second.following).prepared.sources.token_ids[:-1]) == "new\n"


async def test_long_output_is_taken_in_pieces_and_a_very_long_one_is_sent_again() -> None:
    store = MemoryStore()
    first, second = Replica(store), Replica(store)
    output = tokens("one\n") * 25_000
    await first.proposer.apply([opening("a", POEM)], [], [])
    live = lives(first.following)
    live.fold(0, output)
    first.writer.note(live)
    await first.writer.stop()
    answer = await second.proposer.apply([], [observation(len(output), "two\n")], [])
    assert as_text(answer.windows["a"].draft.token_ids) == "three\nfour\n"
    assert lives(second.following).output[: len(output)] == output
    live.fold(len(output), tokens("x") * (MAX_STORED_TOKENS + 1 - len(output)))
    first.writer.note(live)
    await first.writer.stop()
    late = [observation(MAX_STORED_TOKENS + 1, "y")]
    assert (await Replica(store).proposer.apply([], late, [])).gaps == {"a": UNKNOWN}
