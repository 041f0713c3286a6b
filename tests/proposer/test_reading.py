"""What a replica reads of others is checked as what a scheduler sends, and costs one request."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from optimist_aligner.text.sources import Sources
from optimist_proposer.core.messages import UNKNOWN
from optimist_proposer.core.output_log import encode_output, put_varint
from optimist_proposer.core.sources import name_sources, pack_sources
from optimist_proposer.core.stored_request import MAX_STORED_TOKENS, StoredRequest
from optimist_proposer.core.wrong_value import WrongKind, WrongValueError
from tests.proposer.holding import MemoryStore, Replica, lives, observation, opening
from tests.proposer.text import as_text, tokens

POEM = "one\ntwo\nthree\nfour\n"
BESIDE = "six\nseven\n"


def runs(*numbers: int) -> bytes:
    data = bytearray()
    for number in numbers:
        put_varint(data, number)
    return bytes(data)


def with_sources(*predictions: str, prompt: str = "") -> Callable[[MemoryStore], None]:
    """Stores request and sources as if they were opened so, by who does not check anything."""

    def change(store: MemoryStore) -> None:
        value = pack_sources(Sources([tokens(text) for text in predictions], tokens(prompt)))
        _store_sources(store, value)

    return change


def _store_sources(store: MemoryStore, value: bytes) -> None:
    stored = store.requests["a"]
    assert stored is not None
    name = name_sources("", value)
    store.sources[name] = value
    store.requests["a"] = replace(stored, source_name=name, log=b"\x08onXX", num_known=4)


def with_log(log: bytes, num_known: int = 4) -> Callable[[MemoryStore], None]:
    def change(store: MemoryStore) -> None:
        stored = store.requests["a"]
        assert stored is not None
        store.requests["a"] = replace(stored, log=log, num_known=num_known)

    return change


def other_content(store: MemoryStore) -> None:
    stored = store.requests["a"]
    assert stored is not None
    store.sources[stored.source_name] = pack_sources(Sources([tokens("other\n")]))


def no_end(store: MemoryStore) -> None:
    _store_sources(store, pack_sources(Sources([tokens("ab")]))[:-4])


def negative_token(store: MemoryStore) -> None:
    value = pack_sources(Sources([tokens("ab")]))
    _store_sources(store, value.replace(b"a\0\0\0", b"\xfb\xff\xff\xff"))


def count(kind: WrongKind) -> float:
    sample = REGISTRY.get_sample_value("optimist_proposer_redis_wrong_values_total", {"kind": kind})
    return sample or 0


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (with_log(runs(3 * 2, 5, 5, 5)), WrongKind.SIZE),
        (with_log(runs(2 * len(POEM) + 1, 0) * 2), WrongKind.SIZE),
        (with_log(runs(9, 0), num_known=2**32 - 1), WrongKind.SIZE),
        (with_log(bytes(25)), WrongKind.SIZE),
        (with_log(runs(9, 400)), WrongKind.FORMAT),
        (with_log(b"\x80"), WrongKind.FORMAT),
        (with_log(runs(8, 1, 2, 3, 5000)), WrongKind.TOKEN),
        # Beyond the last token of the poem a separator stands.
        (with_log(runs(9, 2 * (len(POEM) - 3))), WrongKind.TOKEN),
        (other_content, WrongKind.DIGEST),
        (with_sources("x" * 101), WrongKind.LIMIT),
        (with_sources(*"abcd"), WrongKind.LIMIT),
        (with_sources(*["a"] * 50), WrongKind.LIMIT),
        (with_sources("\uffff"), WrongKind.LIMIT),
        (with_sources("a", prompt="b" * 21), WrongKind.LIMIT),
        (negative_token, WrongKind.LIMIT),
        (no_end, WrongKind.FORMAT),
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
    both = [observation(4, "two\n"), observation(4, "se", "b")]
    answer = await second.proposer.apply([], both, [])
    assert answer.gaps == {"a": UNKNOWN}
    assert as_text(answer.windows["b"].draft.token_ids) == "ven\n"
    assert count(kind) == before + 1
    # The scheduler opens it anew, and that is stored.
    again = [observation(0, "X\none\n")]
    answer = await second.proposer.apply([opening("a", POEM)], again, [])
    assert as_text(answer.windows["a"].draft.token_ids) == "two\nthree\nfour\n"
    await second.writer.stop()
    third = Replica(store)
    answer = await third.proposer.apply([], [observation(6, "two\n")], [])
    assert as_text(answer.windows["a"].draft.token_ids) == "three\nfour\n"
    assert caplog.text.count(f"is wrong ({kind})") == 1


async def test_many_wrong_values_of_a_kind_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    first, second = Replica(store), Replica(store)
    names = [f"request-{number}" for number in range(50)]
    await first.proposer.apply([opening(name, POEM) for name in names], [], [])
    await first.writer.stop()
    for name in names:
        stored = store.requests[name]
        assert stored is not None
        store.requests[name] = replace(stored, num_known=99)
    before = count(WrongKind.SIZE)
    await second.proposer.apply([], [observation(0, "one", name) for name in names], [])
    assert count(WrongKind.SIZE) == before + 50
    assert caplog.text.count("its value in the store is wrong") == 1


async def test_what_is_known_here_stays_when_the_log_is_another() -> None:
    store = MemoryStore()
    first, second = Replica(store), Replica(store)
    await first.proposer.apply([opening("a", POEM)], [observation(0, "one\n")], [])
    await first.writer.stop()
    await second.proposer.apply([], [observation(4, "t")], [])
    stored = store.requests["a"]
    assert stored is not None
    log, _ = encode_output(prepared_sources(), 0, tokens("ONE\ntwo\n"), 0)
    store.requests["a"] = replace(stored, log=log, num_known=8)
    answer = await second.proposer.apply([], [observation(8, "x")], [])
    assert answer.gaps == {"a": 5}
    assert as_text(lives(second.following).output) == "one\nt"


def prepared_sources() -> Sources:
    return Sources([tokens(POEM)])


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
