from collections.abc import AsyncIterator, Callable

import pytest

from optimist_proposer.store.redis_store import RedisStore
from tests.proposer.holding import redis_store


@pytest.fixture
async def open_store() -> AsyncIterator[Callable[..., RedisStore]]:
    """Opens stores as `redis_store` does, and closes them when the test is over."""
    stores: list[RedisStore] = []

    def open_one(*arguments: object, **options: object) -> RedisStore:
        stores.append(redis_store(*arguments, **options))  # type: ignore[arg-type]
        return stores[-1]

    yield open_one
    for store in stores:
        await store.stop()
