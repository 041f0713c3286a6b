"""Requests with drafts from every source: token for token the same text, whatever others ask."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from openai import OpenAI

from optimist_training.data.edits import Edit
from tests.integration.edit import ask, ask_together
from tests.integration.matrix.random_requests import Asker, make_body
from tests.stack import MODEL_FLAG, Service, free_port, start

# Of two requests that run together one is preempted before either has ended, see test_scenarios.
MEMORY = ("--num-kv-blocks", "18", "--max-num-batched-tokens", "128", "--dtype", "float64")
TREE = ("--drafter-tokens", "12", "--drafter-depth", "4", "--drafter-width", "3")

NUM_RANDOM_REQUESTS = 20

SOURCES = {
    "none": ("--drafter", "none"),
    "ngram": ("--drafter", "ngram", "--drafter-tokens", "16"),
    "draft_model": ("--drafter", "draft_model"),
    "draft_model discarded": ("--drafter", "draft_model", "--drafter-kv", "discard"),
    "draft_model tree": ("--drafter", "draft_model", "--drafter-tree", "dynamic", *TREE),
    "quantised": ("--drafter", "quantised", "--drafter-bits", "8"),
    "quantised tree": (
        *("--drafter", "quantised", "--drafter-bits", "4"),
        *("--drafter-tree", "fixed", *TREE),
    ),
    "medusa": ("--drafter", "medusa"),
    "medusa tree": ("--drafter", "medusa", "--drafter-tree", "fixed", *TREE),
    "eagle": ("--drafter", "eagle"),
    "eagle tree": ("--drafter", "eagle", "--drafter-tree", "dynamic", *TREE),
    "eagle by rejection": ("--drafter", "eagle", "--acceptance", "rejection"),
}


class Peers:
    """What stays while one worker after the other takes the same port."""

    def __init__(self, stack: ExitStack) -> None:
        self._port = free_port()
        self._options: tuple[str, ...] = ()
        self._worker = self._start_worker()
        stack.callback(lambda: self._worker.stop())
        proposer = start(stack, "proposer", *MODEL_FLAG)
        worker = ("--workers", self._worker.address)
        # Without predictions, only the source in question drafts.
        proposers = ("--proposers", proposer.address, "--follow", "predictions")
        scheduler = start(stack, "scheduler", *worker, *proposers)
        gateway = start(stack, "gateway", *MODEL_FLAG, "--schedulers", scheduler.address)
        self._others = [proposer, scheduler, gateway]
        self.url = f"http://{gateway.address}"

    def work(self, *options: str) -> None:
        """Has a worker with these options, if it is not that which there is."""
        if options != self._options:
            self._worker.stop()
            self._options = options
            self._worker = self._start_worker()

    def check(self) -> None:
        """Raises AssertionError if a service has ended."""
        assert all(service.is_running for service in (self._worker, *self._others))

    def _start_worker(self) -> Service:
        return Service("worker", *MODEL_FLAG, *MEMORY, *self._options, port=self._port)


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
    """What each request says without company and without a draft."""
    peers.work(*SOURCES["none"])
    return [ask(client, edit, None).token_ids for edit in batch]


@pytest.fixture(scope="module", params=SOURCES)
def source(request: pytest.FixtureRequest, peers: Peers) -> str:
    """A source, by its name, with which a worker drafts."""
    name: str = request.param
    peers.work(*SOURCES[name])
    return name


def test_every_source_says_the_same(
    alone: list[list[int]], source: str, client: OpenAI, batch: list[Edit]
) -> None:
    answers = ask_together(client, batch)
    assert [answer.token_ids for answer in answers] == alone
    for number, answer in enumerate(answers):
        is_predicted = bool(number % 2)
        by_source = dict(answer.by_source)
        assert sum(by_source.values()) == len(answer.token_ids)
        assert (by_source.pop("prediction", 0) > 0) == is_predicted
        if is_predicted:
            # A proposer knows the request's own text too.
            by_source.pop("ngram", None)
        assert set(by_source) <= {"target", source.split()[0]}
    if source != "none":
        assert sum(answer.by_source.get(source.split()[0], 0) for answer in answers) > 0


async def test_no_request_harms_another(
    alone: list[list[int]], source: str, peers: Peers, batch: list[Edit]
) -> None:
    rng = random.Random(f"matrix {source}")
    bodies = [make_body(rng, chat=bool(number % 2)) for number in range(NUM_RANDOM_REQUESTS)]
    async with httpx.AsyncClient(base_url=peers.url, timeout=120) as http:
        asker = Asker(http)
        others = asyncio.gather(*(asker.ask_random(body) for body in bodies))
        number = 0
        while not others.done() or number < 2 * len(batch):
            edit, expected = batch[number % len(batch)], alone[number % len(batch)]
            tokens = await asker.ask_edit(edit, with_prediction=bool(number % 2))
            assert tokens == expected[: len(tokens)]
            assert len(tokens) == min(len(expected), asker.max_tokens)
            number += 1
        await others
    peers.check()
    assert asker.statuses.count(200) >= NUM_RANDOM_REQUESTS // 10
    assert asker.statuses.count(400) > NUM_RANDOM_REQUESTS // 5
