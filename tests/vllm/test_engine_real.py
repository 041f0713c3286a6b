"""The engine in real vLLM, below a gateway, with the bundled model.

What users see is tested against it by the tests of our own engine: `make vllm-test`.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.integration.edit import Answer, ask, complete, connect, edits
from tests.stack import Stack, descendants, wait_for_end, wait_until
from tests.vllm.server import BIN

pytestmark = [
    pytest.mark.skipif(not (BIN / "vllm").exists(), reason="`make vllm-setup` was not run"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
HANG_SECONDS = 3.0
ADMIN_KEY = "admin-key"


@pytest.fixture(scope="module")
def served() -> Iterator[Stack]:
    stack = Stack(
        engine_python=str(BIN / "python"),
        OPTIMIST_ENGINE_HANG_SECONDS=str(HANG_SECONDS),
        OPTIMIST_GATEWAY_ADMIN_KEYS=f"root:{ADMIN_KEY}",
        # vLLM takes longer to start again than a gateway waits by default.
        OPTIMIST_GATEWAY_RESUME_SECONDS="120",
    )
    yield stack
    # What was killed has said so, with a traceback.
    assert stack.end(signal.SIGTERM) == 0, stack.output


@pytest.fixture(scope="module")
def client(served: Stack) -> Iterator[OpenAI]:
    with closing(connect(served.url)) as connected:
        yield connected


def long_answer(client: OpenAI, **options: Any) -> Answer:
    """Asks for more text than there is time to write before something happens to the engine."""
    extra = {"ignore_eos": True}
    return ask(client, edits(1)[0], None, max_tokens=1500, extra_body=extra, **options)


def core_pid(served: Stack) -> int:
    """Returns the process id of vLLM's engine core."""
    (engine,) = served.service_pids("engine")
    (pid,) = [pid for pid, command in descendants(engine).items() if "EngineCore" in command]
    return pid


def is_ready(served: Stack) -> bool:
    return httpx.get(f"{served.url}/ready", trust_env=False).is_success


def test_edits_are_the_same_text_with_and_without_predictions(client: OpenAI) -> None:
    asked = edits(60)
    with ThreadPoolExecutor(8) as pool:
        plain = list(pool.map(lambda edit: ask(client, edit, None), asked))
        predicted = list(pool.map(lambda edit: ask(client, edit, edit.before), asked))
    assert [each.text for each in predicted] == [each.text for each in plain]
    num_tokens = sum(len(each.token_ids) for each in predicted)
    assert sum(each.accepted for each in predicted) > num_tokens * 0.6


@pytest.mark.parametrize(
    ("param", "options"),
    [
        ("min_p", {"extra_body": {"min_p": 0.5}}),
        ("logit_bias", {"logit_bias": {"5": 1}}),
        ("priority", {"extra_body": {"priority": 3}}),
        ("num_speculative_tokens", {"extra_body": {"num_speculative_tokens": 65}}),
    ],
)
def test_what_vllm_does_not_support_is_refused_by_name(
    client: OpenAI, param: str, options: dict[str, Any]
) -> None:
    with pytest.raises(BadRequestError) as error:
        complete(client, edits(1)[0].messages(), **options)
    assert error.value.param == param


def test_a_pause_keeps_what_runs(served: Stack, client: OpenAI) -> None:
    expected, begun = long_answer(client), Event()
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(long_answer, client, on_chunk=lambda _: begun.set())
        assert begun.wait(60)
        order(served, "pause?mode=keep")
        assert not going.done()
        order(served, "resume")
        assert going.result().text == expected.text


def order(served: Stack, path: str) -> None:
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    url = f"{served.url}/admin/{path}"
    httpx.post(url, headers=headers, timeout=30, trust_env=False).raise_for_status()


@pytest.mark.parametrize("who", ["engine", "core"])
def test_a_request_goes_on_when_what_was_killed_is_back(
    served: Stack, client: OpenAI, who: str
) -> None:
    expected = long_answer(client)
    (engine,) = served.service_pids("engine")
    core, killed = core_pid(served), False
    seen = 0

    def kill(number: int) -> None:
        nonlocal killed, seen
        seen = number
        if number == 5 and not killed:
            killed = True
            os.kill(engine if who == "engine" else core, signal.SIGKILL)

    answer = long_answer(client, on_chunk=kill)
    assert killed
    assert answer.text == expected.text
    assert seen > 5
    # An orphan of vLLM would keep its memory.
    wait_for_end([engine, core])


def test_an_engine_that_hangs_says_so(served: Stack, client: OpenAI) -> None:
    core, begun = core_pid(served), Event()
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(long_answer, client, on_chunk=lambda _: begun.set())
        assert begun.wait(60)
        os.kill(core, signal.SIGSTOP)
        try:
            wait_until(lambda: not is_ready(served), "a gateway that is not ready", 20)
        finally:
            os.kill(core, signal.SIGCONT)
        wait_until(lambda: is_ready(served), "a gateway that is ready again", 20)
        assert len(going.result().token_ids) == 1500
