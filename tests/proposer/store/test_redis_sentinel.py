"""A real Sentinel that makes a replica the master when the master dies."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from optimist_common.errors import SetupError
from optimist_proposer.store.redis_store import RedisStore
from optimist_proposer.store.store import StoreError
from tests.proposer.holding import Replica, observation, opening
from tests.proposer.store.redis_fleet import Watched, watched
from tests.proposer.text import as_text

OpenStore = Callable[..., RedisStore]

POEM = "one\ntwo\nthree\nfour\n"


async def shared_output(reader: RedisStore) -> int | None:
    """Returns how many tokens another process finds; None while it finds nothing."""
    try:
        (stored,) = await reader.read(["a"])
    except StoreError:
        return None
    return None if stored is None else stored.num_known


async def follow_through_a_failover(fleet: Watched, open_store: OpenStore) -> None:
    store, reader = open_store(fleet.url), open_store(fleet.url)
    await store.start()
    replica = Replica(store)
    await replica.proposer.apply([opening("a", POEM)], [observation(0, "one\n")], [])
    await replica.writer.stop()
    assert await shared_output(reader) == 4
    fleet.master.kill()
    # One token at a time, as a request goes on; each is followed, whoever is master.
    position = 4
    async with asyncio.timeout(60):
        while await shared_output(reader) != position or position < 6:
            if position < 4096:
                answer = await replica.proposer.apply([], [observation(position, "X")], [])
                assert not answer.gaps
                position += 1
            await replica.writer.stop()
            await asyncio.sleep(0.05)
    other = Replica(reader)
    answer = await other.proposer.apply([], [observation(position, "\none\n")], [])
    assert as_text(answer.windows["a"].draft.token_ids) == "two\nthree\nfour\n"


async def test_failover_loses_no_request(tmp_path: Path, open_store: OpenStore) -> None:
    with watched(tmp_path) as fleet:
        await follow_through_a_failover(fleet, open_store)


async def test_unknown_service_and_wrong_password_are_one_line(
    tmp_path: Path, open_store: OpenStore
) -> None:
    with watched(tmp_path) as fleet:
        for url in (
            fleet.url.replace("mymaster", "other"),
            fleet.url.replace("secret", "wrong"),
            "redis+sentinel://127.0.0.1:1/mymaster",
        ):
            with pytest.raises(SetupError, match=r"cannot reach Redis at redis\+sentinel") as info:
                await open_store(url).start()
            assert "\n" not in str(info.value)
            assert "wrong@" not in str(info.value)
