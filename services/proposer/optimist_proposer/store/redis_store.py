"""The store that replicas share: Redis."""

import logging
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from hashlib import sha1
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from optimist_common.errors import one_line
from optimist_proposer.core.sources import (
    Prepared,
    SourceName,
    WrongKind,
    WrongValueError,
    pack_sources,
)
from optimist_proposer.core.stored_request import (
    CLOSED,
    NUMBER_BYTES,
    OPENING_BYTES,
    OTHER_OPENING,
    REFUSED,
    TOKEN_BYTES,
    UNKNOWN,
    WRONG,
    LogWrite,
    StoredRequest,
    WriteKind,
    pack_number,
    pack_opening,
    stored_bytes,
)
from optimist_proposer.observing import metrics
from optimist_proposer.observing.seldom import SeldomWarnings
from optimist_proposer.store.redis_client import Command, RedisClient
from optimist_proposer.store.store import OutputStore

logger = logging.getLogger(__name__)

_CLOSED_MS = 30_000
# Sources are written again now and then, as long as one of their requests is heard of.
_REFRESHES_PER_LIFE = 4
# Values are read in portions of so many bytes at most, unless a single one may be larger.
_PORTION_BYTES = 4_194_304
# KEYS: requests. ARGV: time to live in ms, then for each request its opening, known tokens before
# and after, tokens to append, and the whole request if it may be created. Answers the number of
# tokens known then, or why there is none, for each. What one key holds is no error for the others.
WRITE_SCRIPT = f"""
local answers = {{}}
for i, key in ipairs(KEYS) do
  local at = 5 * i - 3
  local size = redis.pcall('STRLEN', key)
  if type(size) == 'table' then
    if not string.find(size.err, 'WRONGTYPE', 1, true) then return size end
    size = 1
  end
  local head = ''
  if size >= {OPENING_BYTES + NUMBER_BYTES} then
    head = redis.call('GETRANGE', key, 0, {OPENING_BYTES + NUMBER_BYTES - 1})
  end
  local is_ours = string.sub(head, 1, {OPENING_BYTES}) == ARGV[at]
  local known = string.sub(head, {OPENING_BYTES + 1})
  if #head > 0 and not is_ours then
    answers[i] = {OTHER_OPENING}
  elseif is_ours and size == {stored_bytes(0)} + {TOKEN_BYTES} * struct.unpack('<I4', known) then
    if known == ARGV[at + 1] and #ARGV[at + 3] > 0 then
      redis.call('APPEND', key, ARGV[at + 3])
      known = ARGV[at + 2]
      redis.call('SETRANGE', key, {OPENING_BYTES}, known)
    end
    redis.call('PEXPIRE', key, ARGV[1])
    answers[i] = struct.unpack('<I4', known)
  elseif #ARGV[at + 4] > 0 then
    redis.call('SET', key, ARGV[at + 4], 'PX', ARGV[1])
    answers[i] = struct.unpack('<I4', ARGV[at + 2])
  elseif size > 0 then
    answers[i] = {WRONG}
  else
    answers[i] = {UNKNOWN}
  end
end
return answers
"""

WRITE_SCRIPT_SHA = sha1(WRITE_SCRIPT.encode(), usedforsecurity=False).hexdigest()
"""How Redis names the script once it has run."""


class RedisStore(OutputStore):
    """Keeps a value for each request, and one for sources that any number of them share.

    A batch of writes is one round trip with one script call (in a cluster, one for each hash tag);
    a batch of reads is one, and two more if there are sources that this process does not have, as
    far as they are not large.
    """

    def __init__(self, url: str, *, key_prefix: str, ttl_seconds: int, timeout_ms: int) -> None:
        """Raises SetupError if `url` is no Redis URL (`open_redis`); connects when first used.

        Redis drops a request that is not observed for `ttl_seconds`.
        """
        self._client = RedisClient(url, key_prefix, timeout_ms)
        self._key_prefix = key_prefix
        self._warnings = SeldomWarnings(logger)
        self._ttl_ms = ttl_seconds * 1000
        self._refresh_seconds = ttl_seconds / _REFRESHES_PER_LIFE

    async def start(self) -> None:
        """Raises SetupError if Redis refuses; one that is away is waited for beside the rest."""
        await self._client.start()

    async def read(
        self, max_tokens: Mapping[str, int]
    ) -> Mapping[str, StoredRequest | WrongValueError]:
        """See `OutputStore.read`."""
        ids, numbers = list(max_tokens), list(max_tokens.values())
        keys = [self._request_key(request_id) for request_id in ids]
        found: dict[str, StoredRequest | WrongValueError] = {}
        async for index, value in self._read_values(keys, [*map(stored_bytes, numbers)]):
            if value == CLOSED:
                continue
            try:
                if isinstance(value, WrongValueError):
                    raise value
                found[ids[index]] = StoredRequest.unpack(value, numbers[index])
            except WrongValueError as error:
                found[ids[index]] = error
        return found

    async def read_sources(
        self, names: Sequence[SourceName], max_bytes: int
    ) -> AsyncIterator[tuple[SourceName, bytes | WrongValueError]]:
        """See `OutputStore.read_sources`."""
        if not names:
            return
        keys = [self._sources_key(name) for name in names]
        lengths = await self._client.run([("STRLEN", key) for key in keys], is_urgent=True)
        # What is too long or no string shows when a byte of it is asked for.
        sizes = [
            length if isinstance(length, int) and length <= max_bytes else 0 for length in lengths
        ]
        async for index, value in self._read_values(keys, sizes):
            yield names[index], value

    async def _read_values(
        self, keys: Sequence[str], sizes: Sequence[int]
    ) -> AsyncIterator[tuple[int, bytes | WrongValueError]]:
        """Yields index and value of keys that hold one of at most so many bytes, or another."""
        for first, end in _portions(sizes):
            # A byte more says that there are more.
            commands: list[Command] = [
                ("GETRANGE", keys[n], 0, sizes[n]) for n in range(first, end)
            ]
            answers = await self._client.run(commands, is_urgent=True)
            for index, answer in enumerate(answers, first):
                if isinstance(answer, bytes) and len(answer) <= sizes[index]:
                    if answer:
                        yield index, answer
                elif isinstance(answer, bytes):
                    message = f"more than {sizes[index]} bytes" if sizes[index] else "too long"
                    yield index, WrongValueError(WrongKind.SIZE, message)
                elif isinstance(answer, ResponseError) and "WRONGTYPE" not in str(answer):
                    self._note_refusal(answer)
                else:
                    yield index, WrongValueError(WrongKind.TYPE, "no string")

    async def write(self, writes: Sequence[LogWrite], closed: Sequence[str]) -> list[int]:
        """See `OutputStore.write`."""
        now = time.monotonic()
        sources = self._find_stale_sources(writes, now)
        commands: list[Command] = [self._set_sources(prepared) for prepared in sources]
        shards = self._by_shard(writes)
        commands += [self._script(members) for members in shards]
        opened = [write for write in writes if write.kind is WriteKind.OPEN]
        commands += [
            ("SET", self._request_key(write.request.request_id), write.data, "PX", self._ttl_ms)
            for write in opened
        ]
        commands += [("SET", self._request_key(one), CLOSED, "PX", _CLOSED_MS) for one in closed]
        if not commands:
            return []
        results = iter(await self._run(commands))
        for prepared in sources:
            if next(results):
                prepared.refreshed_at = now
        answers: dict[str, int] = {}
        for members in shards:
            known = next(results) or [REFUSED] * len(members)
            ids = (write.request.request_id for write in members)
            answers.update(zip(ids, known, strict=True))
        for write in opened:
            is_set = next(results)
            answers[write.request.request_id] = write.num_after if is_set else REFUSED
        return [answers[write.request.request_id] for write in writes]

    async def stop(self) -> None:
        """Closes all connections."""
        await self._client.stop()

    async def _run(self, commands: Sequence[Command]) -> list[Any]:
        """Runs commands, with the text of the script where Redis does not have it.

        Returns:
            Their answers; None for one that Redis refuses, which is logged.
        """
        results = await self._client.run(commands, is_urgent=False)
        unknown = [n for n, one in enumerate(results) if isinstance(one, NoScriptError)]
        if unknown:
            whole: list[Command] = [("EVAL", WRITE_SCRIPT, *commands[n][2:]) for n in unknown]
            again = await self._client.run(whole, is_urgent=False)
            for number, result in zip(unknown, again, strict=True):
                results[number] = result
        for number, result in enumerate(results):
            if isinstance(result, ResponseError):
                self._note_refusal(result)
                results[number] = None
        return results

    def _note_refusal(self, error: ResponseError) -> None:
        metrics.STORE_ERRORS.inc()
        kind = type(error).__name__
        self._warnings.write(kind, "Redis refuses a command: %s: %s", kind, one_line(error))

    def _find_stale_sources(self, writes: Sequence[LogWrite], now: float) -> list[Prepared]:
        """Returns the sources to set: of requests that Redis lost, and those set long ago."""
        fresh_since = max(now - self._refresh_seconds, self._client.failed_at)
        found = {
            write.request.prepared.name: write.request.prepared
            for write in writes
            if write.kind is WriteKind.CREATE or write.request.prepared.refreshed_at <= fresh_since
        }
        return list(found.values())

    def _by_shard(self, writes: Sequence[LogWrite]) -> list[list[LogWrite]]:
        shards: dict[int, list[LogWrite]] = {}
        for write in writes:
            if write.kind is not WriteKind.OPEN:
                shards.setdefault(self._shard(write.request.request_id), []).append(write)
        return list(shards.values())

    def _script(self, writes: Sequence[LogWrite]) -> Command:
        keys = [self._request_key(write.request.request_id) for write in writes]
        arguments: list[str | bytes | int] = [self._ttl_ms]
        for write in writes:
            creates = write.kind is WriteKind.CREATE
            arguments += [
                pack_opening(write.request.generation),
                pack_number(max(write.num_before, 0)),
                pack_number(write.num_after),
                b"" if creates else write.data,
                write.data if creates else b"",
            ]
        return ("EVALSHA", WRITE_SCRIPT_SHA, len(keys), *keys, *arguments)

    def _set_sources(self, prepared: Prepared) -> Command:
        value = pack_sources(prepared.sources)
        return ("SET", self._sources_key(prepared.name), value, "PX", self._ttl_ms)

    def _shard(self, request_id: str) -> int:
        return zlib.crc32(request_id.encode("utf-8", "surrogatepass")) % self._client.num_shards

    def _request_key(self, request_id: str) -> str:
        return f"{self._key_prefix}:{{{self._shard(request_id)}}}:request:{request_id}"

    def _sources_key(self, name: SourceName) -> str:
        return f"{self._key_prefix}:sources:{name.tenant.hex()}:{name.content.hex()}"


def _portions(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields first and end of indices whose sizes are at most a portion together, or just one."""
    first, size = 0, 0
    for index, more in enumerate(sizes):
        if index > first and size + more > _PORTION_BYTES:
            yield first, index
            first, size = index, 0
        size += more
    if sizes:
        yield first, len(sizes)
