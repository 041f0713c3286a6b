"""A worker that breaks, goes away or fails, over real sockets."""

import logging
from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from tests.scheduler.client import MODES, PROMPT, add, ask, truth, until
from tests.scheduler.conftest import Start
from tests.scheduler.fake_services import (
    FakeWorkerServicer,
    check_integrity,
    serve_worker,
)
from tests.scheduler.fake_worker import FakeWorker

SPOILS: list[dict[str, Any]] = [
    {"token_ids": b"1"},
    {"sequence": 99},
    {"repeat": 1},
    {"slots": b"1234"},
]
"""What a result is that fits no plan."""


@pytest.mark.parametrize("mode", MODES)
async def test_a_stream_that_breaks_or_brings_what_fits_no_plan_is_a_pause(
    start: Start, mode: str, worker: FakeWorkerServicer
) -> None:
    worker.break_at = {3, 9}
    prompts = {handle: [handle, 7, handle] for handle in range(6)}
    engine, first = await start(**MODES[mode])
    for spoil in SPOILS:
        worker.spoil_at, worker.spoil = {worker.worker.num_steps + 14}, spoil
        num_streams = worker.num_streams
        client = await ask(first.stub, *(add(handle, prompt) for handle, prompt in prompts.items()))
        assert client.tokens == {handle: truth(prompt) for handle, prompt in prompts.items()}
        assert worker.num_streams == num_streams + (4 if num_streams == 0 else 1)
    check_integrity(engine)


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_worker_that_is_lost_with_all_its_plans_is_found_again(
    start: Start, depth: int, worker: FakeWorkerServicer
) -> None:
    worker.step_seconds = 0.01
    smaller = FakeWorkerServicer(FakeWorker(num_blocks=10, max_num_seqs=1, eos_token_ids=(2,)))
    engine, client = await start(max_plans_in_flight=depth)
    await client.send(add(1, PROMPT))
    await client.read_until(lambda: 1 in client.tokens)
    worker.may_run.clear()
    await until(lambda: worker.num_plans == depth)
    await worker.stop()
    async with serve_worker(smaller, worker.port):
        await client.until_finished(1)
        check_integrity(engine)
        assert client.tokens[1] == truth(PROMPT)
        assert smaller.num_streams == 1


async def test_a_worker_that_always_fails_ends_the_request_and_not_the_scheduler(
    start: Start, worker: FakeWorkerServicer
) -> None:
    worker.spoil_at = set(range(1, 6))
    _, client = await start(max_plans_in_flight=1)
    await client.ask(add(1, PROMPT))
    assert client.finished[1].reason == scheduler_pb2.FINISH_REASON_ERROR
    lost = "the worker was lost 5 times while it worked on this"
    assert client.finished[1].message.startswith(lost)
    await client.ask(add(2, PROMPT))
    assert client.tokens[2] == truth(PROMPT)


async def test_the_configuration_is_logged_in_one_line(
    start: Start, worker: FakeWorkerServicer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    worker.break_at = {3}
    engine, client = await start(max_num_batched_tokens=3, max_plans_in_flight=2)
    await client.ask(add(1, PROMPT))
    config = engine.scheduler.config
    (line,) = [text for text in caplog.messages if text.startswith("engine: ")]
    fields = dict(field.split("=") for field in line.removeprefix("engine: ").split())
    assert fields == {name: str(value) for name, value in config.model_dump().items()}
    # A row of the worker's four would be without a token.
    assert (fields["max_num_seqs"], fields["max_num_batched_tokens"]) == ("3", "3")
    assert (fields["max_plans_in_flight"], fields["num_blocks"]) == ("2", "32")
