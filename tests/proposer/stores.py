"""Stores for tests."""

from optimist_proposer.core.line import LineAlgorithm
from optimist_proposer.redis_store import RedisStore
from tests.proposer.text import NEWLINES

LINE = LineAlgorithm(NEWLINES)


def redis_store(url: str, key_prefix: str = "test", cache_bytes: int = 1_000_000) -> RedisStore:
    """Returns a replica's store; its patience suits a busy machine."""
    return RedisStore(
        url,
        key_prefix=key_prefix,
        ttl_seconds=60,
        timeout_ms=2000,
        cache_bytes=cache_bytes,
        prepare=LINE.prepare,
    )
