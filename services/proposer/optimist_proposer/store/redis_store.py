"""The store that replicas share: Redis."""

import logging
import time
import zlib
from collections.abc import Sequence
from hashlib import sha1
from typing import Any

from redis.exceptions import NoScriptError

from optimist_proposer.core.sources import Prepared, SourceName, pack_sources
from optimist_proposer.core.stored_request import (
    CLOSED,
    NUMBER_BYTES,
    OPENING_BYTES,
    OTHER_OPENING,
    UNKNOWN,
    LogWrite,
    StoredRequest,
    WriteKind,
    pack_number,
    pack_opening,
)
from optimist_proposer.store.redis_client import Command, RedisClient
from optimist_proposer.store.store import OutputStore

logger = logging.getLogger(__name__)

_CLOSED_MS = 30_000
# Sources are written once and live as long as one of their requests is heard of in time.
_REFRESHES_PER_LIFE = 4
# KEYS: requests. ARGV: time to live in ms, then for each request its opening, known tokens before
# and after, runs to append, and the whole request if it may be created. Answers the number of
# tokens known then, or why there is none, for each.
WRITE_SCRIPT = f"""
local answers = {{}}
for i, key in ipairs(KEYS) do
  local at = 5 * i - 3
  local head = redis.call('GETRANGE', key, 0, {OPENING_BYTES + NUMBER_BYTES - 1})
  local known
  if #head == 0 then
    if #ARGV[at + 4] > 0 then
      redis.call('SET', key, ARGV[at + 4], 'PX', ARGV[1])
      known = ARGV[at + 2]
    end
  elseif string.sub(head, 1, {OPENING_BYTES}) ~= ARGV[at] then
    answers[i] = {OTHER_OPENING}
  else
    known = string.sub(head, {OPENING_BYTES + 1})
    if known == ARGV[at + 1] and #ARGV[at + 3] > 0 then
      redis.call('APPEND', key, ARGV[at + 3])
      known = ARGV[at + 2]
      redis.call('SETRANGE', key, {OPENING_BYTES}, known)
    end
    redis.call('PEXPIRE', key, ARGV[1])
  end
  if known then
    answers[i] = struct.unpack('<I4', known)
  elseif not answers[i] then
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
    a batch of reads is one, and another if there are sources that this process does not have.
    """

    def __init__(self, url: str, *, key_prefix: str, ttl_seconds: int, timeout_ms: int) -> None:
        """Raises SetupError if `url` is no Redis URL; connects when first used.

        Args:
            url: See `open_redis`.
            key_prefix: What the names of all keys begin with.
            ttl_seconds: After this time without an observation Redis drops a request.
            timeout_ms: Longest wait for an answer.
        """
        self._client = RedisClient(url, key_prefix, timeout_ms)
        self._key_prefix = key_prefix
        self._ttl_ms = ttl_seconds * 1000
        self._refresh_seconds = ttl_seconds / _REFRESHES_PER_LIFE

    async def start(self) -> None:
        """Raises SetupError if Redis cannot be reached."""
        await self._client.start()

    async def read(self, request_ids: Sequence[str]) -> list[StoredRequest | None]:
        """See `OutputStore.read`."""
        commands: list[Command] = [("GET", self._request_key(one)) for one in request_ids]
        values = await self._client.run(commands, is_urgent=True)
        return [_stored_request(value) for value in values]

    async def read_sources(self, names: Sequence[SourceName]) -> list[bytes | None]:
        """See `OutputStore.read_sources`."""
        commands: list[Command] = [("GET", self._sources_key(name)) for name in names]
        values = await self._client.run(commands, is_urgent=True)
        return [value if isinstance(value, bytes) else None for value in values]

    async def write(self, writes: Sequence[LogWrite], closed: Sequence[str]) -> list[int]:
        """See `OutputStore.write`."""
        now = time.monotonic()
        set_sources, refreshed = self._split_sources(writes, now)
        commands: list[Command] = [self._set_sources(prepared) for prepared in set_sources]
        commands += [
            ("PEXPIRE", self._sources_key(prepared.name), self._ttl_ms) for prepared in refreshed
        ]
        shards = self._by_shard(writes)
        commands += [self._script(members) for members in shards]
        commands += [
            ("SET", self._request_key(write.request.request_id), write.data, "PX", self._ttl_ms)
            for write in writes
            if write.kind is WriteKind.OPEN
        ]
        commands += [("SET", self._request_key(one), CLOSED, "PX", _CLOSED_MS) for one in closed]
        if not commands:
            return []
        results = await self._run(commands)
        first = len(set_sources)
        flags = results[first : first + len(refreshed)]
        lost = [one for one, flag in zip(refreshed, flags, strict=True) if not flag]
        if lost:
            await self._run([self._set_sources(prepared) for prepared in lost])
        for prepared in (*set_sources, *refreshed):
            prepared.refreshed_at = now
        answers = {write.request.request_id: write.num_after for write in writes}
        first += len(refreshed)
        for members, known in zip(shards, results[first:], strict=False):
            ids = (write.request.request_id for write in members)
            answers.update(zip(ids, known, strict=True))
        return [answers[write.request.request_id] for write in writes]

    async def stop(self) -> None:
        """Closes all connections."""
        await self._client.stop()

    async def _run(self, commands: Sequence[Command]) -> list[Any]:
        """Runs commands, with the text of the script where Redis does not have it."""
        results = await self._client.run(commands, is_urgent=False)
        unknown = [n for n, one in enumerate(results) if isinstance(one, NoScriptError)]
        if unknown:
            whole: list[Command] = [("EVAL", WRITE_SCRIPT, *commands[n][2:]) for n in unknown]
            again = await self._client.run(whole, is_urgent=False)
            for number, result in zip(unknown, again, strict=True):
                results[number] = result
        return results

    def _split_sources(
        self, writes: Sequence[LogWrite], now: float
    ) -> tuple[list[Prepared], list[Prepared]]:
        """Returns the sources to set, and those of which only the expiry is put off."""
        to_set: dict[SourceName, Prepared] = {}
        to_refresh: dict[SourceName, Prepared] = {}
        fresh_since = max(now - self._refresh_seconds, self._client.failed_at)
        for write in writes:
            prepared = write.request.prepared
            is_fresh = prepared.refreshed_at > fresh_since
            if write.kind is WriteKind.CREATE or (write.kind is WriteKind.OPEN and not is_fresh):
                to_set[prepared.name] = prepared
            elif not is_fresh:
                to_refresh[prepared.name] = prepared
        return (
            list(to_set.values()),
            [prepared for name, prepared in to_refresh.items() if name not in to_set],
        )

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


def _stored_request(value: object) -> StoredRequest | None:
    if not isinstance(value, bytes) or value == CLOSED:
        return None
    try:
        return StoredRequest.unpack(value)
    except ValueError as error:
        logger.warning("a request is taken as unknown: %s", error)
        return None
