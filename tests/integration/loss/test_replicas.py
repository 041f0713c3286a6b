"""Services started one by one, with three proposers that share requests through a real Redis."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from optimist_bench.replicas.redis_server import RedisServer
from optimist_training.data.edits import Edit
from tests.integration.edit import ask, connect, edits
from tests.stack import MODEL_FLAG, start, start_services

NUM_PROPOSERS = 3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis that the tests may kill."""
    with RedisServer(tmp_path_factory.mktemp("store")) as server:
        yield server


class Parts:
    """What stays while a scheduler is started with other options."""

    def __init__(self, stack: ExitStack, store: str) -> None:
        options = (*MODEL_FLAG, "--store", store)
        self.proposers = [start(stack, "proposer", *options) for _ in range(NUM_PROPOSERS)]
        # Float64, so that every token is the same however wide a pass is.
        self._services = start_services(stack, self.proposers, ("--dtype", "float64"))
        self.client = stack.enter_context(connect(self._services.url))

    def begin(self, *options: str) -> None:
        """Starts the proposers again that were killed, and another scheduler."""
        for proposer in self.proposers:
            if not proposer.is_running:
                proposer.restart()
        self._services.scheduler.restart(*options)
        self._services.gateway.wait_until_healthy()


@pytest.fixture(scope="module")
def parts(store: RedisServer) -> Iterator[Parts]:
    with ExitStack() as stack:
        yield Parts(stack, store.url)


@pytest.mark.parametrize("affinity", ["true", "false"])
def test_replicas_take_turns_and_may_die(parts: Parts, store: RedisServer, affinity: str) -> None:
    parts.begin("--proposer-affinity", affinity)

    def is_of_use(edit: Edit) -> bool:
        """Checks that a prediction changes nothing; tells whether most of it was accepted."""
        plain, predicted = (ask(parts.client, edit, text) for text in (None, edit.before))
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
    plain = ask(parts.client, edit, None)

    def freeze_once(number: int) -> None:
        if number == 2:
            store.freeze()

    disturbed = ask(parts.client, edit, edit.before, on_chunk=freeze_once)
    store.thaw()
    assert disturbed.token_ids == plain.token_ids
