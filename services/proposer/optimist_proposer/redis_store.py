"""The store that replicas share: Redis."""

import logging
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from optimist_common.errors import SetupError
from optimist_proposer.core.breaker import CircuitBreaker
from optimist_proposer.core.lines import INT32
from optimist_proposer.core.lru import Lru
from optimist_proposer.core.prediction import Prediction
from optimist_proposer.store import (
    GENERATION_BYTES,
    CursorStore,
    Opening,
    Snapshot,
    StoreError,
    Update,
    new_generation,
    pack_state,
    unpack_cursor,
    version_of,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

# KEYS: state and prediction of each request. ARGV: time to live in ms, then version and new state
# of each. Answers 1 for each state that was set.
_COMPARE_AND_SET = """
local saved = {}
for i = 1, #KEYS, 2 do
  local version = ARGV[i + 1]
  if redis.call('GETRANGE', KEYS[i], 0, #version - 1) == version then
    redis.call('SET', KEYS[i], ARGV[i + 2], 'PX', ARGV[1])
    redis.call('PEXPIRE', KEYS[i + 1], ARGV[1])
    saved[#saved + 1] = 1
  else
    saved[#saved + 1] = 0
  end
end
return saved
"""

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0


class RedisStore(CursorStore):
    """Keeps each request as two values: its packed cursor, and its prediction, written once.

    A batch costs one MGET and one script call; a prediction is read from Redis only by a replica
    that did not open the request, and then kept.
    """

    def __init__(
        self,
        url: str,
        *,
        key_prefix: str,
        ttl_seconds: int,
        timeout_ms: int,
        cache_bytes: int,
        prepare: Callable[["array[int]"], Prediction],
    ) -> None:
        """Raises SetupError if `url` is none that Redis knows; connects when first used.

        Args:
            url: `redis://`, `rediss://` or `unix://`.
            key_prefix: What the names of all keys begin with.
            ttl_seconds: After this time without an observation Redis drops a request.
            timeout_ms: Longest wait for a connection or an answer.
            cache_bytes: Most memory for predictions kept in this process.
            prepare: Turns predicted tokens into a prediction.
        """
        seconds = timeout_ms / 1000
        try:
            self._redis = Redis.from_url(
                url,
                socket_timeout=seconds,
                socket_connect_timeout=seconds,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise SetupError(f"--store: {error}") from None
        self._url, self._key_prefix = url, key_prefix
        self._ttl_ms = ttl_seconds * 1000
        self._prepare = prepare
        self._compare_and_set = self._redis.register_script(_COMPARE_AND_SET)
        self._predictions: Lru[bytes, Prediction] = Lru(1 << 20, cache_bytes)
        self._breaker = CircuitBreaker(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)

    async def start(self) -> None:
        """See `CursorStore.start`."""
        try:
            await self._redis.ping()
        except (RedisError, OSError) as error:
            raise SetupError(
                f"cannot reach Redis at {_without_password(self._url)}: {_one_line(error)}; "
                "start it, or choose another --store"
            ) from None

    async def open(self, openings: Sequence[Opening]) -> None:
        """See `CursorStore.open`."""
        pipeline = self._redis.pipeline(transaction=True)
        for opening in openings:
            generation = new_generation()
            state = pack_state(generation, opening.cursor)
            tokens = generation + opening.prediction.token_ids.tobytes()
            pipeline.set(self._state_key(opening.request_id), state, px=self._ttl_ms)
            pipeline.set(self._prediction_key(opening.request_id), tokens, px=self._ttl_ms)
            self._keep(generation, opening.prediction)
        await self._guard(pipeline.execute)

    async def load(self, request_ids: Sequence[str]) -> list[Snapshot | None]:
        """See `CursorStore.load`."""
        keys = [self._state_key(request_id) for request_id in request_ids]
        states = await self._get(keys)
        predictions = await self._load_predictions(request_ids, states)
        return [None if state is None else _snapshot(state, predictions) for state in states]

    async def save(self, updates: Sequence[Update]) -> list[bool]:
        """See `CursorStore.save`."""
        keys: list[str] = []
        arguments: list[bytes | int] = [self._ttl_ms]
        for update in updates:
            request_id, version = update.request_id, update.version
            keys += [self._state_key(request_id), self._prediction_key(request_id)]
            arguments += [version, pack_state(version[:GENERATION_BYTES], update.cursor)]
        saved = await self._guard(lambda: self._compare_and_set(keys, arguments))
        return [flag == 1 for flag in saved]

    async def close(self, request_ids: Sequence[str]) -> None:
        """See `CursorStore.close`."""
        keys = [self._state_key(request_id) for request_id in request_ids]
        keys += [self._prediction_key(request_id) for request_id in request_ids]
        await self._guard(lambda: self._redis.unlink(*keys))

    async def stop(self) -> None:
        """See `CursorStore.stop`."""
        await self._redis.aclose()

    async def _load_predictions(
        self, request_ids: Sequence[str], states: Sequence[bytes | None]
    ) -> dict[bytes, Prediction]:
        """Returns the predictions of all states by their generation, where they can be found."""
        predictions: dict[bytes, Prediction] = {}
        missing: list[str] = []
        for request_id, state in zip(request_ids, states, strict=True):
            if state is None:
                continue
            generation = state[:GENERATION_BYTES]
            prediction = self._predictions.get(generation)
            if prediction is None:
                missing.append(self._prediction_key(request_id))
            else:
                predictions[generation] = prediction
        if missing:
            for value in await self._get(missing):
                if value is not None:
                    generation = value[:GENERATION_BYTES]
                    prediction = self._prepare(array(INT32, value[GENERATION_BYTES:]))
                    predictions[generation] = prediction
                    self._keep(generation, prediction)
        return predictions

    async def _get(self, keys: Sequence[str]) -> list[bytes | None]:
        values = await self._guard(lambda: self._redis.mget(keys))
        return [value if isinstance(value, bytes) else None for value in values]

    def _keep(self, generation: bytes, prediction: Prediction) -> None:
        self._predictions.put(generation, prediction, prediction.num_bytes)

    async def _guard(self, call: Callable[[], Awaitable[T]]) -> T:
        """Calls Redis unless it failed a moment ago; raises StoreError for all its failures."""
        if not self._breaker.allows(time.monotonic()):
            raise StoreError("Redis failed a moment ago")
        try:
            answer = await call()
        except (RedisError, OSError) as error:
            self._breaker.failed(time.monotonic())
            raise StoreError(f"Redis: {_one_line(error)}") from error
        self._breaker.succeeded()
        return answer

    def _state_key(self, request_id: str) -> str:
        return f"{self._key_prefix}:cursor:{request_id}"

    def _prediction_key(self, request_id: str) -> str:
        return f"{self._key_prefix}:prediction:{request_id}"


def _snapshot(state: bytes, predictions: dict[bytes, Prediction]) -> Snapshot | None:
    prediction = predictions.get(state[:GENERATION_BYTES])
    if prediction is None:
        return None
    try:
        cursor = unpack_cursor(state)
    except ValueError as error:
        logger.warning("a request is taken as unknown: %s", error)
        return None
    return Snapshot(prediction, cursor, version_of(state))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
