"""The same requests in every way of scheduling: token for token the same text."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx
import pytest
from openai import OpenAI

from optimist_training.edits import Edit
from tests.integration.edit import ask, edits
from tests.stack import BUNDLED_MODEL, Service, free_port

MODEL = ("--model", str(BUNDLED_MODEL))
# Two of the requests fit, three do not.
MEMORY = ("--num-kv-blocks", "44", "--max-num-batched-tokens", "128", "--dtype", "float64")
SPECULATION = ("--num-speculative-tokens", "8")

SCENARIOS = [
    pytest.param(("--max-plans-in-flight", depth, "--enable-optimistic-scheduling", ahead, *more))
    for depth in ("1", "2", "3")
    for ahead in ("true", "false")
    for more in (SPECULATION, ("--num-speculative-tokens", "0"))
] + [
    pytest.param(("--max-plans-in-flight", "2", "--multi-step-count", "4", *SPECULATION)),
    pytest.param(("--max-plans-in-flight", "2", "--enable-prefix-caching", "true", *SPECULATION)),
    pytest.param(("--num-pipeline-stages", "2", *SPECULATION)),
    pytest.param(("--policy", "priority", "--draft-width", "adaptive", *SPECULATION)),
]


@dataclass
class Peers:
    worker: str
    proposer: str


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    proposer, worker = Service("proposer", *MODEL), Service("worker", *MODEL, *MEMORY)
    yield Peers(worker.address, proposer.address)
    worker.stop()
    proposer.stop()


@pytest.fixture(scope="module")
def batch() -> list[Edit]:
    found = [edit for edit in edits(40, seed=9) if 300 < len(edit.after) < 500][:5]
    assert len(found) == 5
    return found


@pytest.fixture(scope="module")
def alone(peers: Peers, batch: list[Edit]) -> list[list[int]]:
    """What each request says without company, speculation or anything ahead."""
    plain = ("--enable-optimistic-scheduling", "false", "--num-speculative-tokens", "0")
    with serve(peers, *plain) as (client, _):
        return [ask(client, edit, None).token_ids for edit in batch]


@contextmanager
def serve(peers: Peers, *options: str) -> Iterator[tuple[OpenAI, str]]:
    """Runs a scheduler and a gateway; yields a client and the URL of the scheduler's metrics."""
    port = str(free_port())
    with ExitStack() as stack:
        scheduler = Service(
            "scheduler",
            *("--worker", peers.worker, "--proposers", peers.proposer, "--metrics-port", port),
            *options,
        )
        stack.callback(scheduler.stop)
        gateway = Service("gateway", *MODEL, "--scheduler", scheduler.address)
        stack.callback(gateway.stop)
        url = f"http://{gateway.address}/v1"
        client = stack.enter_context(OpenAI(base_url=url, api_key="none", max_retries=0))
        yield client, f"http://127.0.0.1:{port}/metrics"


def read_metric(url: str, name: str) -> float:
    lines = httpx.get(url).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("options", SCENARIOS, ids=lambda options: " ".join(options))
def test_every_scenario_says_the_same(
    peers: Peers, batch: list[Edit], alone: list[list[int]], options: tuple[str, ...]
) -> None:
    with serve(peers, *options) as (client, metrics), ThreadPoolExecutor(len(batch)) as pool:
        predictions = [edit.before if number % 2 else None for number, edit in enumerate(batch)]
        answers = list(
            pool.map(lambda pair: ask(client, *pair), zip(batch, predictions, strict=True))
        )
        assert [answer.token_ids for answer in answers] == alone
        accepted = sum(answer.accepted for answer in answers)
        assert (accepted > 0) == (SPECULATION[1] in options)
        assert read_metric(metrics, "optimist_scheduler_preemptions_total") > 0
