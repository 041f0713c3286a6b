"""Many requests at once, sent to a server that does what the test wants."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from optimist_client import BatchError, Client, Options, RetryPolicy
from optimist_client.batch import run_batch
from tests.client.scripted_server import GOOD, ScriptedServer, failing, hanging


def running() -> None:
    """Says that the services run."""


@pytest.fixture
def client(server: ScriptedServer, quick: RetryPolicy) -> Iterator[Client]:
    with Client(server.address, timeout=20, retries=quick) as connected:
        yield connected


def test_a_failure_loses_no_other_result(server: ScriptedServer, client: Client) -> None:
    server.behaviours = [
        failing(grpc.StatusCode.INVALID_ARGUMENT, optimist_error_field="sampling.top_p"),
        failing(grpc.StatusCode.INVALID_ARGUMENT),
        GOOD,
    ]
    with pytest.raises(BatchError, match=r"prompt \d: as the test wants \(and 1 more") as caught:
        run_batch(client, [("x", {})] * 3, running)
    error = caught.value
    (good,) = {0, 1, 2} - error.errors.keys()
    texts = [each and each.text for each in error.results]
    assert texts == ["a" if index == good else None for index in range(3)]
    assert error.status == "INVALID_ARGUMENT"


def test_nothing_is_sent_if_an_option_is_wrong(server: ScriptedServer, client: Client) -> None:
    wrong: Options = {"top_n": 3}  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match="prompt 1: there is no option top_n"):
        run_batch(client, [("x", {}), ("x", wrong)], running)
    assert server.requests == []


def test_all_calls_end_with_the_services(server: ScriptedServer, client: Client) -> None:
    def ended() -> None:
        raise RuntimeError("the services ended")

    server.behaviours = [hanging, failing(grpc.StatusCode.INTERNAL)]
    with pytest.raises(RuntimeError, match="the services ended"):
        run_batch(client, [("x", {})] * 2, ended)
    assert server.ended.wait(20)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """The signal raises, even where a shell started the tests in its background and ignores it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cancels_all_calls(server: ScriptedServer, client: Client) -> None:
    def interrupt() -> None:
        while len(server.requests) < 2:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    server.behaviours = [hanging]
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_batch(client, [("x", {"n": 64})] * 3, running)
    thread.join()
    assert server.ended.wait(20)
    # Two at a time: each may have as many as 64 answers.
    assert len(server.requests) == 2
