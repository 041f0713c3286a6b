"""The same requests with drafts from every source: token for token the same text."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from openai import OpenAI

from optimist_training.edits import Edit
from tests.integration.edit import Answer, ask, edits
from tests.stack import BUNDLED_MODEL, Service, free_port

MODEL = ("--model", str(BUNDLED_MODEL))
# Of two requests that run together one is preempted before either has ended, see test_scenarios.
MEMORY = ("--num-kv-blocks", "18", "--max-num-batched-tokens", "128", "--dtype", "float64")
TREE = ("--drafter-tokens", "12", "--drafter-depth", "4", "--drafter-width", "3")

SOURCES = {
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
        self._proposer = self._start(stack, "proposer", *MODEL)
        with self.work():
            worker = ("--workers", f"127.0.0.1:{self._port}")
            scheduler = self._start(stack, "scheduler", *worker, "--proposers", self._proposer)
            gateway = self._start(stack, "gateway", *MODEL, "--schedulers", scheduler)
        self.url = f"http://{gateway}"

    @contextmanager
    def work(self, *options: str) -> Iterator[None]:
        """Runs a worker."""
        service = Service("worker", *MODEL, *MEMORY, *options, port=self._port)
        try:
            yield
        finally:
            service.stop()

    def ask_all(self, batch: list[Edit], predictions: list[str | None]) -> list[Answer]:
        """Asks for all edits at once; the first waits until the scheduler has the worker."""
        with (
            OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0) as client,
            ThreadPoolExecutor(len(batch)) as pool,
        ):
            pairs = zip(batch, predictions, strict=True)
            return list(pool.map(lambda pair: ask(client, *pair), pairs))

    def _start(self, stack: ExitStack, name: str, *options: str) -> str:
        service = Service(name, *options)
        stack.callback(service.stop)
        return service.address


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    with ExitStack() as stack:
        yield Peers(stack)


@pytest.fixture(scope="module")
def batch() -> list[Edit]:
    found = [edit for edit in edits(60, seed=9) if 200 < len(edit.after) < 300][:4]
    assert len(found) == 4
    return found


@pytest.fixture(scope="module")
def alone(peers: Peers, batch: list[Edit]) -> list[list[int]]:
    """What each request says without company and without a draft."""
    with peers.work():
        return [peers.ask_all([edit], [None])[0].token_ids for edit in batch]


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_says_the_same(
    peers: Peers, batch: list[Edit], alone: list[list[int]], name: str
) -> None:
    with peers.work(*SOURCES[name]):
        predictions = [edit.before if number % 2 else None for number, edit in enumerate(batch)]
        answers = peers.ask_all(batch, predictions)
    assert [answer.token_ids for answer in answers] == alone
    for answer, prediction in zip(answers, predictions, strict=True):
        by_source = dict(answer.by_source)
        assert sum(by_source.values()) == len(answer.token_ids)
        assert (by_source.pop("prediction", 0) > 0) == (prediction is not None)
        if prediction is not None:
            # A proposer knows the request's own text too.
            by_source.pop("ngram", None)
        assert set(by_source) <= {"target", name.split()[0]}
    assert sum(answer.by_source.get(name.split()[0], 0) for answer in answers) > 0
