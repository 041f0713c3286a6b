"""Services started one by one, with two proposers that share requests through a real Redis."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from openai import OpenAI

from optimist_bench.replicas.redis_server import RedisServer
from tests.integration.edit import ask, edits
from tests.stack import BUNDLED_MODEL, Service

MODEL = ("--model", str(BUNDLED_MODEL))


@pytest.fixture
def parts(own_redis_server: RedisServer) -> Iterator[dict[str, Service]]:
    with ExitStack() as stack:

        def start(name: str, *options: str) -> Service:
            service = Service(name, *options)
            stack.callback(service.stop)
            return service

        store = ("--store", own_redis_server.url)
        first, second = (start("proposer", *MODEL, *store) for _ in range(2))
        # Float64, so that every token is the same however wide a pass is.
        worker = start("worker", *MODEL, "--dtype", "float64")
        proposers = f"{first.address},{second.address}"
        scheduler = start("scheduler", "--worker", worker.address, "--proposers", proposers)
        gateway = start("gateway", *MODEL, "--scheduler", scheduler.address)
        yield {"gateway": gateway, "first": first, "second": second}


def test_replicas_take_turns_and_may_die(
    parts: dict[str, Service], own_redis_server: RedisServer
) -> None:
    url = f"http://{parts['gateway'].address}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        first, second, third, fourth = edits(4, seed=23)
        for edit in (first, second):
            plain = ask(client, edit, None)
            predicted = ask(client, edit, edit.before)
            assert predicted.token_ids == plain.token_ids
            assert predicted.accepted > len(plain.token_ids) / 2

        parts["first"].kill()
        plain = ask(client, third, None)
        predicted = ask(client, third, third.before)
        assert predicted.token_ids == plain.token_ids
        assert predicted.accepted > len(plain.token_ids) / 2

        own_redis_server.kill()
        assert ask(client, fourth, fourth.before).token_ids == ask(client, fourth, None).token_ids
