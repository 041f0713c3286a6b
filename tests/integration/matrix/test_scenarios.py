"""The same requests in every way of scheduling: token for token the same text."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from openai import OpenAI

from optimist_training.data.edits import Edit
from tests.integration.edit import ask, ask_together
from tests.stack import MODEL_FLAG, Service, free_port, read_metrics, start, wait_until_healthy

# Each request fits, and so do the prompts of two: 7 blocks and more. An answer's end takes 12 and
# more, so of two that run together one is preempted before either has ended.
MEMORY = ("--num-kv-blocks", "18", "--max-num-batched-tokens", "128", "--dtype", "float64")
SPECULATION = ("--num-speculative-tokens", "8")
NO_SPECULATION = ("--num-speculative-tokens", "0")

# More of them are in the tests of the scheduler.
SCENARIOS = [
    pytest.param(("--max-plans-in-flight", depth, "--enable-optimistic-scheduling", ahead, *more))
    for depth, ahead, more in (
        ("1", "true", SPECULATION),
        ("1", "true", NO_SPECULATION),
        ("2", "false", SPECULATION),
        ("2", "true", NO_SPECULATION),
        ("3", "true", SPECULATION),
        ("3", "false", NO_SPECULATION),
    )
] + [
    pytest.param(("--max-plans-in-flight", "2", "--multi-step-count", "4", *SPECULATION)),
    pytest.param(("--max-plans-in-flight", "2", "--enable-prefix-caching", "true", *SPECULATION)),
    pytest.param(("--num-pipeline-stages", "2", *SPECULATION)),
    pytest.param(("--policy", "priority", "--draft-width", "adaptive", *SPECULATION)),
]


class Peers:
    """What stays while one scheduler after the other takes the same port."""

    def __init__(self, stack: ExitStack) -> None:
        self._port = free_port()
        self._worker = start(stack, "worker", *MODEL_FLAG, *MEMORY).address
        self._proposer = start(stack, "proposer", *MODEL_FLAG).address
        # A gateway is healthy only with its scheduler.
        with self.schedule():
            gateway = start(stack, "gateway", *MODEL_FLAG, "--schedulers", self._scheduler)
        self.url = f"http://{gateway.address}"

    @property
    def _scheduler(self) -> str:
        return f"127.0.0.1:{self._port}"

    @contextmanager
    def schedule(self, *options: str) -> Iterator[str]:
        """Runs a scheduler; yields the URL of its metrics."""
        port = str(free_port())
        peers = ("--workers", self._worker, "--proposers", self._proposer)
        service = Service("scheduler", *peers, "--metrics-port", port, *options, port=self._port)
        try:
            yield f"http://127.0.0.1:{port}/metrics"
        finally:
            service.stop()


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    with ExitStack() as stack:
        yield Peers(stack)


@pytest.fixture(scope="module")
def client(peers: Peers) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{peers.url}/v1", api_key="none", max_retries=0) as connected:
        yield connected


@pytest.fixture(scope="module")
def alone(peers: Peers, client: OpenAI, batch: list[Edit]) -> list[list[int]]:
    """What each request says without company, speculation or anything ahead."""
    plain = ("--max-plans-in-flight", "1", "--enable-optimistic-scheduling", "false")
    with peers.schedule(*plain, *NO_SPECULATION) as metrics:
        wait_until_healthy(peers.url)
        answers = [ask(client, edit, None).token_ids for edit in batch]
        assert read_metric(metrics, "optimist_scheduler_preemptions_total") == 0
        return answers


def read_metric(url: str, name: str) -> float:
    return sum(value for key, value in read_metrics(url).items() if key.startswith(name))


@pytest.mark.parametrize("options", SCENARIOS, ids=lambda options: " ".join(options))
def test_every_scenario_says_the_same(
    peers: Peers,
    client: OpenAI,
    batch: list[Edit],
    alone: list[list[int]],
    options: tuple[str, ...],
) -> None:
    with peers.schedule(*options) as metrics:
        wait_until_healthy(peers.url)
        answers = ask_together(client, batch)
        assert [answer.token_ids for answer in answers] == alone
        accepted = sum(answer.accepted for answer in answers)
        assert (accepted > 0) == (SPECULATION[1] in options)
        assert read_metric(metrics, "optimist_scheduler_preemptions_total") > 0
