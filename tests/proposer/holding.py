"""Proposers and stores for tests, over the tokens of `tests.proposer.text`."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from optimist_aligner.text.sources import INT32, Sources
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_proposer.batch import BatchProposer
from optimist_proposer.core.line import LineAlgorithm
from optimist_proposer.core.live_requests import LiveRequest, RequestCache
from optimist_proposer.core.messages import LimitCheck, Limits, Observation, Open
from optimist_proposer.core.sources import (
    Prepared,
    SourceName,
    WrongValueError,
    name_sources,
    pack_sources,
)
from optimist_proposer.core.stored_request import (
    OTHER_OPENING,
    UNKNOWN,
    LogWrite,
    StoredRequest,
    WriteKind,
    next_write,
)
from optimist_proposer.following import Following
from optimist_proposer.store.redis_store import RedisStore
from optimist_proposer.store.store import OutputStore, WriteBehind
from tests.proposer.text import NEWLINE_INDENT, NEWLINES, as_text, tokens

POEM = "one\ntwo\nthree\nfour\n"
VOCABULARY = Vocabulary([*(chr(number) for number in range(NEWLINE_INDENT)), "\n  "])
LINE = LineAlgorithm(NEWLINES)
LIMITS = Limits(
    max_predictions=3,
    max_prediction_tokens=100,
    max_prediction_lines=50,
    max_prediction_bytes=150,
    max_alignment_ms=10_000,
)
_generations = count(1)


def following(
    limits: Limits = LIMITS, max_requests: int = 100, window_tokens: int = 64, **options: Any
) -> Following:
    cache, check = RequestCache(max_requests, 10_000_000), LimitCheck(limits, VOCABULARY)
    options = {"prompt_tokens": 20, "min_value": 0.0} | options
    return Following(LINE, cache, check, window_tokens=window_tokens, **options)


def lives(held: Following, request_id: str = "a") -> LiveRequest:
    """Returns a request that is followed."""
    found = held.get(request_id)
    assert found is not None
    return found


def live(request_id: str = "a", output: str = "", sources: Prepared | None = None) -> LiveRequest:
    """Returns a request of its own generation, for the poem if no sources are given."""
    generation = next(_generations).to_bytes(8, "little")
    request = LiveRequest(request_id, generation, sources or prepared(POEM))
    request.fold(0, tokens(output))
    return request


def written(request: LiveRequest, *, is_lost: bool = False) -> LogWrite:
    """Returns what is to be written of a request next."""
    write = next_write(request, is_lost=is_lost)
    assert write is not None
    return write


class Replica:
    """A proposer with its own memory and a store that it shares; writes when asked to."""

    def __init__(self, store: OutputStore, held: Following | None = None) -> None:
        self.following = held or following()
        self.writer = WriteBehind(store, 100, self.following.forget)
        self.proposer = BatchProposer(self.following, store, self.writer)


def redis_store(url: str, key_prefix: str = "test", timeout_ms: int = 2000) -> RedisStore:
    """Returns a replica's store; its patience suits a busy machine."""
    return RedisStore(url, key_prefix=key_prefix, ttl_seconds=60, timeout_ms=timeout_ms)


async def follow_until_shared(
    replica: Replica, reader: RedisStore, position: int, names: Sequence[str] = "a"
) -> set[str]:
    """Lets requests grow, a token at a time, until another replica knows all of their outputs.

    Returns what that one expects after "one" of the poem.
    """
    async with asyncio.timeout(60):
        while True:
            tokens_ = [observation(position, "X", name) for name in names]
            assert not (await replica.proposer.apply([], tokens_, [])).gaps
            position += 1
            await replica.writer.stop()
            other = Replica(reader)
            lines = [observation(position, "\none\n", name) for name in names]
            answer = await other.proposer.apply([], lines, [])
            if not answer.gaps:
                return {as_text(window.draft.token_ids) for window in answer.windows.values()}
            await asyncio.sleep(0.05)


def prepared(*predictions: str, tenant: str = "") -> Prepared:
    sources = Sources([tokens(text) for text in predictions])
    name = name_sources(tenant, pack_sources(sources))
    return Prepared(name, sources, LINE.prepare(sources))


def opening(
    request_id: str, *predictions: str, prompt: str = "", tenant: str = "", trace_parent: str = ""
) -> Open:
    said = [tokens(text) for text in predictions]
    return Open(request_id, said, tokens(prompt), tenant, trace_parent)


def observation(position: int, text: str, request_id: str = "a") -> Observation:
    return Observation(request_id, position, tokens(text))


class MemoryStore(OutputStore):
    """A store in this process, with the rules of the one in Redis."""

    def __init__(self) -> None:
        self.requests: dict[str, bytes | None] = {}
        """Packed, by id; None for one that was closed."""
        self.sources: dict[SourceName, bytes] = {}
        self.num_reads = 0

    async def read(
        self, max_tokens: Mapping[str, int]
    ) -> Mapping[str, StoredRequest | WrongValueError]:
        self.num_reads += 1
        found: dict[str, StoredRequest | WrongValueError] = {}
        for request_id, number in max_tokens.items():
            stored = self.requests.get(request_id)
            if stored is not None:
                try:
                    found[request_id] = StoredRequest.unpack(stored, number)
                except WrongValueError as error:
                    found[request_id] = error
        return found

    async def read_sources(
        self, names: Sequence[SourceName], max_bytes: int
    ) -> AsyncIterator[tuple[SourceName, bytes | WrongValueError]]:
        for name in names:
            if name in self.sources:
                assert len(self.sources[name]) <= max_bytes
                yield name, self.sources[name]

    async def write(self, writes: Sequence[LogWrite], closed: Sequence[str]) -> list[int]:
        answers = [self.apply(write) for write in writes]
        self.requests.update(dict.fromkeys(closed))
        return answers

    async def stop(self) -> None:
        """Holds nothing."""

    def apply(self, write: LogWrite) -> int:
        request_id, kind = write.request.request_id, write.kind
        prepared = write.request.prepared
        self.sources[prepared.name] = pack_sources(prepared.sources)
        if kind is WriteKind.OPEN or (kind is WriteKind.CREATE and request_id not in self.requests):
            self.requests[request_id] = write.data
            return write.num_after
        if request_id not in self.requests:
            return UNKNOWN
        stored = stored_in(self, request_id)
        if stored is None or stored.generation != write.request.generation:
            return OTHER_OPENING
        if kind is WriteKind.CREATE or len(stored.output) != write.num_before:
            return len(stored.output)
        output = stored.output + array(INT32, write.data)
        self.requests[request_id] = replace(stored, output=output).pack()
        return write.num_after


def stored_in(store: MemoryStore, request_id: str = "a") -> StoredRequest | None:
    """Returns what a store holds of a request; None if it is closed."""
    value = store.requests[request_id]
    return None if value is None else StoredRequest.unpack(value, 1_000_000)
