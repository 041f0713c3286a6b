"""Services started one by one, with three proposers that share requests through a real Redis."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from openai import OpenAI

from optimist_bench.replicas.redis_server import RedisServer
from optimist_training.edits import Edit
from tests.integration.edit import ask, edits
from tests.stack import BUNDLED_MODEL, Service

MODEL = ("--model", str(BUNDLED_MODEL))
NUM_PROPOSERS = 3


@dataclass(frozen=True)
class Parts:
    gateway: Service
    proposers: list[Service]


@pytest.fixture(params=["true", "false"], ids=["affinity", "round_robin"])
def parts(request: pytest.FixtureRequest, own_redis_server: RedisServer) -> Iterator[Parts]:
    with ExitStack() as stack:

        def start(name: str, *options: str) -> Service:
            service = Service(name, *options)
            stack.callback(service.stop)
            return service

        store = ("--store", own_redis_server.url)
        proposers = [start("proposer", *MODEL, *store) for _ in range(NUM_PROPOSERS)]
        # Float64, so that every token is the same however wide a pass is.
        worker = start("worker", *MODEL, "--dtype", "float64")
        scheduler = start(
            "scheduler",
            *("--workers", worker.address, "--proposer-affinity", str(request.param)),
            *("--proposers", ",".join(proposer.address for proposer in proposers)),
        )
        gateway = start("gateway", *MODEL, "--schedulers", scheduler.address)
        yield Parts(gateway, proposers)


def test_replicas_take_turns_and_may_die(parts: Parts, own_redis_server: RedisServer) -> None:
    url = f"http://{parts.gateway.address}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:

        def is_of_use(edit: Edit) -> bool:
            """Checks that a prediction changes nothing; tells whether most of it was accepted."""
            plain, predicted = ask(client, edit, None), ask(client, edit, edit.before)
            assert predicted.token_ids == plain.token_ids
            return predicted.accepted > len(plain.token_ids) / 2

        chosen = edits(8, seed=23)
        assert is_of_use(chosen[0])
        assert is_of_use(chosen[1])

        parts.proposers[0].kill()
        assert is_of_use(chosen[2])

        # What lives in a replica goes on when Redis answers nothing, and when it is gone.
        own_redis_server.freeze()
        is_of_use(chosen[3])
        own_redis_server.thaw()
        own_redis_server.kill()
        is_of_use(chosen[4])

        # It comes back empty, and is used again as soon as it is tried again.
        own_redis_server.start()
        assert any(is_of_use(edit) for edit in chosen[5:] * 4)


@pytest.mark.parametrize("parts", ["true"], ids=["affinity"], indirect=True)
def test_redis_that_freezes_in_the_middle_of_an_answer(
    parts: Parts, own_redis_server: RedisServer
) -> None:
    edit = max(edits(20), key=lambda one: len(one.after))
    url = f"http://{parts.gateway.address}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        plain = ask(client, edit, None)

        def freeze_once(number: int) -> None:
            if number == 2:
                own_redis_server.freeze()

        disturbed = ask(client, edit, edit.before, on_chunk=freeze_once)
        own_redis_server.thaw()
        assert disturbed.token_ids == plain.token_ids
