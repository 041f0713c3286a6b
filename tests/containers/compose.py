"""What docker-compose.yml has to do, as it is: start, answer, and go on while containers change."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

from optimist_common.network.health import is_serving
from tests.chaos.load.case import Case, make_cases
from tests.chaos.load.client import Client
from tests.chaos.load.load import LoadSettings, ask_each, asking, is_all_right, report_outcomes
from tests.containers.ask import ask_grpc, ask_rest
from tests.containers.engine import PROJECT, address, compose, containers, engine, left_over
from tests.stack import wait_until

HOST = "127.0.0.1"
_URL = f"http://{HOST}:8000"
_SERVE_SECONDS = 120.0
# By default gRPC looks names up every 30 seconds; here it takes about one.
_FOUND_SECONDS = 10.0
_LOAD = LoadSettings(num_clients=4, mean_think_seconds=0.4, leaving_share=0.0, seed=1)
_LONG = 1900
"""Tokens of an answer that takes longer than a gateway waits that nobody tells how long."""
_LOAD_SECONDS = 2.0
"""Before and after each change."""
# Greedy edits have the same answer in float32 whatever else is in a pass.
_KINDS = ("half_right", "plain", "right", "wrong")


@contextmanager
def compose_up() -> Iterator[str]:
    """Starts everything and waits for its health; yields how long that took. Removes it all."""
    started = time.monotonic()
    try:
        compose("up", "--detach", "--wait")
        # A gateway lives before it has reached its scheduler.
        wait_until(lambda: httpx.get(f"{_URL}/ready", trust_env=False).is_success, "the gateway")
        yield f"healthy after {time.monotonic() - started:.0f} s"
    finally:
        compose("down", "--volumes", "--remove-orphans")


def check_requests() -> str:
    """REST and gRPC requests with predictions, at the ports that are published."""
    rest, grpc = ask_rest(_URL), ask_grpc(HOST)
    return f"{rest} predicted tokens accepted by REST, {grpc} by gRPC"


def check_redis() -> str:
    """Redis serves proposers although its image leaves protected mode as it is by default."""
    (redis,) = containers("redis")
    answer = engine("exec", redis, "redis-cli", "config", "get", "protected-mode").split()
    assert answer == ["protected-mode", "no"], answer
    keys = int(engine("exec", redis, "redis-cli", "dbsize"))
    clients = engine("exec", redis, "redis-cli", "client", "list")
    (proposer,) = containers("proposer")
    assert f"addr={address(proposer)}:" in clients, clients
    return f"protected mode off, {keys} keys, connected to the proposer"


def check_moved_scheduler() -> str:
    """A scheduler that comes back with another address is found again at once."""
    (before,) = map(address, containers("scheduler"))
    compose("rm", "--force", "--stop", "scheduler")
    # Takes the address that is free now, with an engine that gives the lowest one.
    _scale("proposer", 2, "--wait")
    compose("up", "--detach", "--no-deps", "scheduler")
    (after,) = map(address, containers("scheduler"))
    assert after != before, f"the scheduler is at {before} again"
    wait_until(lambda: is_serving(f"{after}:50051", 2.0), "a scheduler that serves", _SERVE_SECONDS)
    serving = time.monotonic()
    wait_until(_answers, f"the gateway that answers by the scheduler at {after}", _FOUND_SECONDS)
    seconds = time.monotonic() - serving
    _scale("proposer", 1)
    return f"{before} to {after}, requests are answered {seconds:.1f} s after it serves"


def check_stopped_gateway() -> str:
    """A stream that runs when the gateway is stopped ends whole, however long it takes."""
    long = {"max_tokens": _LONG, "min_tokens": _LONG, "stream": True}
    body = {"model": "tiny-edit", "prompt": "def f(a):", "stream_options": {"include_usage": True}}
    options: dict[str, Any] = {"json": body | long, "timeout": 120.0, "trust_env": False}
    with (
        ThreadPoolExecutor() as thread,
        httpx.stream("POST", f"{_URL}/v1/completions", **options) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        stopped, started = thread.submit(compose, "stop", "gateway"), time.monotonic()
        *_, usage, _, end, _ = lines
        seconds = time.monotonic() - started
        stopped.result()
    assert end == "data: [DONE]", end
    num_tokens = json.loads(usage.removeprefix("data: "))["usage"]["completion_tokens"]
    assert num_tokens == _LONG, usage
    compose("up", "--detach", "--no-deps", "--wait", "gateway")
    wait_until(_answers, "the gateway", _SERVE_SECONDS)
    return f"{num_tokens} tokens, {seconds:.1f} s of them after it was stopped"


async def check_scaled_workers() -> str:
    """Workers are scaled from one to two and back under load, and no answer suffers."""
    cases = [one for one in make_cases(28, seed=1) if one.name.startswith(_KINDS)]
    async with Client([_URL], 180.0) as client:
        expected = await ask_each(client, cases)
        (first,) = map(address, containers("worker"))
        counts = report_outcomes(await _load_while_scaling(client, cases), expected)
    assert is_all_right(counts), counts
    assert counts["duplicates"] == counts["refused_and_asked_again"] == 0, counts
    log = compose("logs", "--no-color", "scheduler")
    connected = re.findall(r"connected to the worker at ([\d.]+):", log)
    assert connected.count(first) == 1, log
    assert len(set(connected)) == 2, log
    assert f"lost the worker at {first}:" not in log, log
    return f"{counts['answers_equal']} of {counts['requests']} answers equal, none refused"


def check_logs() -> str:
    """No service has logged an error."""
    log = compose("logs", "--no-color")
    bad = re.findall(r"^.*(?: ERROR | CRITICAL |INTERNAL|Traceback).*$", log, re.M)
    assert not bad, "\n".join(bad)
    return f"{len(log.splitlines())} lines without an error"


def check_nothing_left() -> str:
    """No container, network or volume of the project is left."""
    assert not (left := left_over()), left
    return f"no container, network or volume of the project {PROJECT}"


async def _load_while_scaling(client: Client, cases: list[Case]) -> list[Any]:
    async with asking(client, cases, _LOAD) as outcomes:
        for number in (2, 1):
            await asyncio.sleep(_LOAD_SECONDS)
            await asyncio.to_thread(_scale_workers, number)
        await asyncio.sleep(_LOAD_SECONDS)
    return outcomes


def _scale_workers(number: int) -> None:
    """Returns when so many workers are in use."""
    _scale("worker", number)
    (scheduler,) = map(address, containers("scheduler"))

    def is_so() -> bool:
        text = httpx.get(f"http://{scheduler}:9051/metrics", trust_env=False).text
        connected = re.findall(r"^optimist_scheduler_worker_connected\{.*\} ([\d.]+)$", text, re.M)
        return sum(map(float, connected)) == number

    wait_until(is_so, f"{number} workers", _SERVE_SECONDS)


def _scale(service: str, number: int, *options: str) -> None:
    scale = ("--no-recreate", "--scale", f"{service}={number}")
    compose("up", "--detach", "--no-deps", *options, *scale, service)


def _answers() -> bool:
    body = {"model": "tiny-edit", "prompt": "def f(a):", "max_tokens": 1}
    response = httpx.post(f"{_URL}/v1/completions", json=body, timeout=60.0, trust_env=False)
    assert response.status_code in (200, 503), response.text
    return response.status_code == 200
