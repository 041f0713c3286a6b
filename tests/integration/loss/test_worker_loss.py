"""Two real workers: one is killed, ended or stopped while requests of every kind are under way."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.integration.edit import MODEL, edits
from tests.stack import MODEL_FLAG, START_SECONDS, free_port, read_metrics, start

WORKER = (*MODEL_FLAG, "--dtype", "float64", "--num-kv-blocks", "200")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 60}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
METRICS = "optimist_scheduler_"


def bodies() -> list[tuple[str, dict[str, Any]]]:
    """Path and body of requests whose answers are the same whenever they are asked."""
    chosen = [edit for edit in edits(60, seed=31) if len(edit.after) > 250][:4]
    assert len(chosen) == 4

    def chat(number: int, **options: Any) -> tuple[str, dict[str, Any]]:
        values = {"model": MODEL, "messages": chosen[number].messages(), "temperature": 0.0}
        return "chat/completions", {**values, "max_tokens": 200, **options}

    def predict(number: int) -> dict[str, Any]:
        return {"prediction": {"type": "content", "content": chosen[number].before}}

    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    seeded = {"temperature": 1.0, "seed": 7}
    return [
        chat(0),
        chat(1, **predict(1)),
        chat(2, **predict(2), **seeded, n=2),
        chat(3, response_format=schema, **seeded),
        chat(0, logprobs=True, top_logprobs=2, **predict(0)),
        (
            "completions",
            {
                "model": MODEL,
                "prompt": chosen[1].before,
                "max_tokens": 200,
                "min_tokens": 200,
                "num_speculative_tokens": 0,
                "temperature": 0.0,
                "echo": True,
                "logprobs": 2,
            },
        ),
    ]


class Parts:
    """Gateway, scheduler, proposer and two workers."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.workers = [start(stack, "worker", *WORKER) for _ in range(2)]
        proposer = start(stack, "proposer", *MODEL_FLAG)
        metrics = free_port()
        addresses = ",".join(worker.address for worker in self.workers)
        scheduler = start(
            stack,
            "scheduler",
            *("--workers", addresses, "--proposers", proposer.address),
            *("--metrics-port", str(metrics)),
        )
        self._metrics = f"http://127.0.0.1:{metrics}/metrics"
        gateway = start(stack, "gateway", *MODEL_FLAG, "--schedulers", scheduler.address)
        self._url = f"http://{gateway.address}/v1/"
        self.wait_until(lambda: self.read("connected") == 2)

    def start_again(self, index: int) -> None:
        """Starts a worker that ended on its port, and waits until it is used."""
        self.workers[index] = start(self._stack, "worker", *WORKER, port=self.workers[index].port)
        self.wait_until(lambda: self.read("connected") == 2)

    def read(self, name: str, index: int | None = None) -> float:
        """Returns a figure of the scheduler, of one worker or all."""
        worker = "" if index is None else f'{{worker="{self.workers[index].address}"}}'
        return sum(
            value
            for key, value in read_metrics(self._metrics).items()
            if key.partition("{")[0] == METRICS + name and key.endswith(worker)
        )

    def wait_until(self, holds: Any) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def ask(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the choices of an answer."""
        response = httpx.post(self._url + path, json=body, timeout=120.0)
        assert response.status_code == 200, response.text
        choices: list[dict[str, Any]] = response.json()["choices"]
        return choices


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    with ExitStack() as stack:
        yield Parts(stack)


@pytest.fixture(scope="module")
def undisturbed(parts: Parts) -> list[list[dict[str, Any]]]:
    return [parts.ask(path, body) for path, body in bodies()]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_lost_worker_changes_no_answer(
    parts: Parts, undisturbed: list[list[dict[str, Any]]], how: signal.Signals
) -> None:
    names = ("worker_losses_total", "moved_requests_total")
    before = {name: parts.read(name) for name in names}
    requests = bodies() * 2
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = pool.map(parts.ask, *zip(*requests, strict=True))
        parts.wait_until(lambda: parts.read("running", 0) >= 2)
        parts.workers[0].signal(how)
        got = list(answers)
    if how is signal.SIGSTOP:
        parts.workers[0].signal(signal.SIGCONT)
    else:
        parts.workers[0].wait()
        parts.start_again(0)
    parts.wait_until(lambda: parts.read("connected") == 2)
    grown = {name: parts.read(name) - before[name] for name in names}
    assert grown["worker_losses_total"] == 1
    # A worker that receives SIGTERM serves for two more seconds, in which all may end.
    if how is not signal.SIGTERM:
        assert grown["moved_requests_total"] >= 2
    for answer, expected in zip(got, undisturbed * 2, strict=True):
        compare(answer, expected)
    parts.wait_until(lambda: parts.read("free_blocks") == parts.read("blocks") == 400)
    assert (parts.read("running"), parts.read("waiting")) == (0, 0)


def compare(answer: Any, expected: Any) -> None:
    """Compares answers, all their fields; the last bits of numbers may differ."""
    if isinstance(expected, dict):
        assert answer.keys() == expected.keys()
        for name in expected:
            compare(answer[name], expected[name])
    elif isinstance(expected, list):
        assert len(answer) == len(expected)
        for one, other in zip(answer, expected, strict=True):
            compare(one, other)
    elif isinstance(expected, float):
        assert answer == pytest.approx(expected, abs=1e-6)
    else:
        assert answer == expected
