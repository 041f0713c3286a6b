"""Services started one by one, with three proposers that share requests through a real Redis."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from openai import OpenAI

from optimist_bench.replicas.redis_server import RedisServer
from optimist_training.data.edits import Edit
from tests.integration.edit import ask, edits
from tests.stack import MODEL_FLAG, Service, free_port, start, wait_until_healthy

NUM_PROPOSERS = 3


class Parts:
    """What stays while one scheduler after the other takes the same port."""

    def __init__(self, stack: ExitStack, store: str) -> None:
        self._stack, self._store = stack, ("--store", store)
        self._port = free_port()
        self.proposers = [self._propose() for _ in range(NUM_PROPOSERS)]
        # Float64, so that every token is the same however wide a pass is.
        self._worker = self._start("worker", *MODEL_FLAG, "--dtype", "float64")
        self._scheduler = self._schedule()
        gateway = self._start("gateway", *MODEL_FLAG, "--schedulers", self._scheduler.address)
        self.url = f"http://{gateway.address}"

    def begin(self, *options: str) -> None:
        """Starts the proposers again that were killed, and another scheduler."""
        self._scheduler.stop()
        self.proposers = [
            one if one.is_running else self._propose(one.port) for one in self.proposers
        ]
        self._scheduler = self._schedule(*options)
        wait_until_healthy(self.url)

    def _propose(self, port: int = 0) -> Service:
        return self._start("proposer", *MODEL_FLAG, *self._store, port=port)

    def _schedule(self, *options: str) -> Service:
        proposers = ",".join(proposer.address for proposer in self.proposers)
        peers = ("--workers", self._worker.address, "--proposers", proposers)
        return self._start("scheduler", *peers, *options, port=self._port)

    def _start(self, name: str, *options: str, port: int = 0) -> Service:
        return start(self._stack, name, *options, port=port)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis that the tests may kill."""
    with RedisServer(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture(scope="module")
def parts(store: RedisServer) -> Iterator[Parts]:
    with ExitStack() as stack:
        yield Parts(stack, store.url)


@pytest.mark.parametrize("affinity", ["true", "false"])
def test_replicas_take_turns_and_may_die(parts: Parts, store: RedisServer, affinity: str) -> None:
    parts.begin("--proposer-affinity", affinity)
    with OpenAI(base_url=f"{parts.url}/v1", api_key="none", max_retries=0) as client:

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
        store.freeze()
        is_of_use(chosen[3])
        store.thaw()
        store.kill()
        is_of_use(chosen[4])

        # It comes back empty, and is used again as soon as it is tried again.
        store.start()
        assert any(is_of_use(edit) for edit in chosen[5:] * 4)


def test_redis_that_freezes_in_the_middle_of_an_answer(parts: Parts, store: RedisServer) -> None:
    edit = max(edits(20), key=lambda one: len(one.after))
    parts.begin()
    with OpenAI(base_url=f"{parts.url}/v1", api_key="none", max_retries=0) as client:
        plain = ask(client, edit, None)

        def freeze_once(number: int) -> None:
            if number == 2:
                store.freeze()

        disturbed = ask(client, edit, edit.before, on_chunk=freeze_once)
        store.thaw()
        assert disturbed.token_ids == plain.token_ids
