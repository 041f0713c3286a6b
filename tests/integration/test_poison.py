"""A request that ends the process of every worker it comes to: it ends, and nobody else notices."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import write_sampling
from optimist_scheduler.core.requests.request import MOST_LOSSES
from tests.checkpoints import VOCAB_SIZE, tiny_checkpoint
from tests.scheduler.client import Client, Command, add
from tests.scheduler.fake_services import serve_fleet
from tests.worker.parallel.started_worker import StartedWorker
from tests.worker.step import build_runner, generate

POISON = VOCAB_SIZE - 1
COMMAND = (sys.executable, "-m", "tests.worker.poisonous_worker", str(POISON))
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("poison"), "llama")


@pytest.fixture(scope="module")
def workers(path: Path) -> Iterator[list[StartedWorker]]:
    options = ("--dtype", "float64", "--drafter", "ngram")
    started: list[StartedWorker] = []
    try:
        for _ in range(2):
            started.append(StartedWorker(path, *options, command=COMMAND))
        yield started
    finally:
        for worker in started:
            worker.end()


@pytest.fixture(scope="module")
def healthy(path: Path) -> list[tuple[list[int], list[int]]]:
    """Prompts and what follows them, without a draft and without the poison."""
    runner, rng = build_runner(path), random.Random(3)
    found: list[tuple[list[int], list[int]]] = []
    while len(found) < 9:
        prompt = [rng.randrange(3, 250) for _ in range(rng.randrange(3, 40))]
        truth = generate(runner, prompt, NUM_TOKENS)
        if POISON not in truth:
            found.append((prompt, truth))
    return found


FORCED = write_sampling(SamplingParams(logit_bias={POISON: 100.0}))
POISONOUS: dict[str, list[Command]] = {
    "in an output": [add(100, [5, 6, 7], sampling=FORCED)],
    "in two": [add(100, [5, 6, POISON, 7]), add(101, [9, 8], sampling=FORCED)],
}


@pytest.mark.parametrize(("where", "num_workers"), [("in two", 1), ("in an output", 2)])
async def test_exactly_the_poisonous_requests_end(
    workers: list[StartedWorker],
    healthy: list[tuple[list[int], list[int]]],
    where: str,
    num_workers: int,
) -> None:
    used, poisonous = workers[:num_workers], POISONOUS[where]
    before = sum(worker.log.count("started again") for worker in used)
    commands = [
        add(handle, prompt, predicted=truth if handle % 2 else [], max_tokens=NUM_TOKENS)
        for handle, (prompt, truth) in enumerate(healthy)
    ]
    for index, command in enumerate(poisonous):
        commands.insert(2 + 3 * index, command)
    ports = [worker.port for worker in used]
    async with serve_fleet(ports, [], enable_prefix_caching=True) as (_, stub):
        client = Client(stub)
        await client.ask(*commands)
    for command in poisonous:
        finished = client.finished.pop(command.add.handle)
        assert finished.reason == scheduler_pb2.FINISH_REASON_ERROR
        assert "at last on nothing else" in finished.message
        client.tokens.pop(command.add.handle, None)
    assert client.tokens == {handle: truth for handle, (_, truth) in enumerate(healthy)}
    lengths = scheduler_pb2.FINISH_REASON_LENGTH
    assert {finished.reason for finished in client.finished.values()} == {lengths}
    after = sum(worker.log.count("started again") for worker in used)
    assert after - before <= MOST_LOSSES * len(poisonous)
