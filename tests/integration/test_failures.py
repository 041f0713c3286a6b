"""What happens to answers when services die, or when what replicas share does not answer."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from openai import OpenAI

from optimist_training.data.edits import Edit
from tests.integration.edit import ask, connect, edits
from tests.redis_server import RedisServer
from tests.stack import (
    EXACT,
    MODEL_FLAG,
    START_SECONDS,
    Service,
    Services,
    Stack,
    read_totals,
    start,
    start_services,
    wait_until,
)


@pytest.mark.parametrize("service", ["proposer", "worker"])
def test_the_answer_completes_with_the_same_text(
    stack: Stack, client: OpenAI, service: str
) -> None:
    edit = max(edits(20), key=lambda one: len(one.after))
    whole = ask(client, edit, edit.before)
    plain = ask(client, edit, None)
    pids = stack.service_pids(service)

    def kill_once(number: int) -> None:
        if number == 2:
            stack.kill_service(service)

    prediction = edit.before if service == "proposer" else None
    disturbed = ask(client, edit, prediction, on_chunk=kill_once)
    assert disturbed.token_ids == whole.token_ids == plain.token_ids

    def is_of_use() -> bool:
        afterwards = ask(client, edit, edit.before)
        assert afterwards.token_ids == whole.token_ids
        return afterwards.accepted >= len(whole.token_ids) / 2

    # What died was started again. Without a proposer, the worker looks up in the prediction.
    wait_until(is_of_use, f"a {service} that is of use", START_SECONDS)
    wait_until(lambda: stack.is_started_again(service, pids), f"another {service}", START_SECONDS)


class Replicas(NamedTuple):
    """Three proposers that share requests through a real Redis, which the tests may kill."""

    store: RedisServer
    proposers: list[Service]
    services: Services


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    with RedisServer(tmp_path_factory.mktemp("store")) as store, ExitStack() as stack:
        options = (*MODEL_FLAG, "--store", store.url)
        proposers = [start(stack, "proposer", *options) for _ in range(3)]
        services = start_services(stack, proposers, EXACT)
        yield Replicas(store, proposers, services)


def test_replicas_may_die(replicas: Replicas) -> None:
    store, proposers, services = replicas
    services.scheduler.restart()
    services.gateway.wait_until_healthy()
    with connect(services.url) as client:

        def is_of_use(edit: Edit) -> bool:
            """Checks that a prediction changes nothing; returns whether most of it was accepted."""
            plain, predicted = ask(client, edit, None), ask(client, edit, edit.before)
            assert predicted.token_ids == plain.token_ids
            return predicted.accepted > len(plain.token_ids) / 2

        chosen = edits(8, seed=23)
        assert is_of_use(chosen[0])
        assert is_of_use(chosen[1])

        proposers[0].kill()
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
    proposers[0].restart()


def test_a_proposer_that_is_stopped_is_passed_over(replicas: Replicas) -> None:
    stopped, *others = replicas.proposers
    replicas.services.scheduler.restart()
    replicas.services.gateway.wait_until_healthy()
    edit = edits(1, seed=29)[0]

    def is_followed_by(proposers: Sequence[Service]) -> bool:
        """Asks; returns whether one of the proposers has seen tokens of the answer."""
        before = _count("observations", proposers)
        assert ask(client, edit, edit.before).token_ids == plain.token_ids
        return _count("observations", proposers) > before

    with connect(replicas.services.url) as client:
        plain = ask(client, edit, None)
        stopped.signal(signal.SIGSTOP)
        try:
            # It has the fewest requests all the time.
            wait_until(lambda: is_followed_by(others), "another proposer", START_SECONDS)
            assert all(is_followed_by(others) for _ in range(6))
        finally:
            stopped.signal(signal.SIGCONT)
        wait_until(lambda: is_followed_by([stopped]), "the proposer that goes on", START_SECONDS)


def _count(what: str, proposers: Sequence[Service]) -> float:
    name = f"optimist_proposer_{what}_total"
    return sum(read_totals(each.metrics_url)[name] for each in proposers)


def test_what_a_proposer_followed_is_opened_at_another_when_it_dies(replicas: Replicas) -> None:
    home, *others = replicas.proposers
    replicas.services.scheduler.restart()
    replicas.services.gateway.wait_until_healthy()
    edit = max(edits(60, seed=31), key=lambda one: len(one.after))
    with connect(replicas.services.url) as client:
        plain = ask(client, edit, None)
        seen = _count("observations", [home])
        ask(client, edit, edit.before)
        assert _count("observations", [home]) > seen, "it has the fewest requests, and is the first"
        before = _count("windows_sent", others), _count("replayed_tokens", others)

        def kill_once(number: int) -> None:
            if number == 1:
                home.kill()

        disturbed = ask(client, edit, edit.before, on_chunk=kill_once)
        assert disturbed.token_ids == plain.token_ids
        # The scheduler has sent predictions and output again; the store was not asked.
        assert _count("windows_sent", others) > before[0]
        assert _count("replayed_tokens", others) == before[1]
    home.restart()


def test_redis_that_freezes_in_the_middle_of_an_answer(replicas: Replicas) -> None:
    edit = max(edits(20), key=lambda one: len(one.after))
    with connect(replicas.services.url) as client:
        plain = ask(client, edit, None)

        def freeze_once(number: int) -> None:
            if number == 2:
                replicas.store.freeze()

        disturbed = ask(client, edit, edit.before, on_chunk=freeze_once)
        replicas.store.thaw()
        assert disturbed.token_ids == plain.token_ids
