"""Stages that divide the layers among them say what one process says, plan by plan."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.network.channel import open_channel
from optimist_worker.drafters.shape import DraftShape
from optimist_worker.model.model import load_model
from optimist_worker.runner.runner import Runner
from tests.checkpoints import tiny_checkpoint
from tests.worker.call import plan, serve
from tests.worker.drafters.drafting import blur, drafting_runner
from tests.worker.parallel.lockstep import Lockstep, Wanted, serve_all
from tests.worker.parallel.overlapped import serve_overlapped
from tests.worker.parallel.ranked_worker import RankedWorker
from tests.worker.parallel.test_two_ranks import SAMPLINGS
from tests.worker.parallel.tokenizer import add_tokenizer
from tests.worker.step import generate

FLOAT64 = ("--dtype", "float64", "--pipeline-parallel-size")
POLL_SECONDS = 0.05


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # It scales embeddings, slides over every other layer and caps scores.
    return add_tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("stages"), "gemma2"))


@pytest.fixture(scope="module")
def shared_alone(path: Path) -> Runner:
    return drafting_runner(path, "ngram", DraftShape(5, 5))


@pytest.fixture
def alone(shared_alone: Runner) -> Runner:
    """The model held by this process alone, whose slots are all free."""
    shared_alone.release_all()
    return shared_alone


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace")


@pytest.fixture(scope="module")
def two_stages(path: Path, trace: Path) -> Iterator[RankedWorker]:
    worker = RankedWorker(path, *FLOAT64, "2", "--drafter", "ngram", "--stage-trace", str(trace))
    yield worker
    worker.end()
    assert worker.process.returncode == 0, worker.log


@asynccontextmanager
async def in_lockstep(alone: Runner, worker: RankedWorker) -> AsyncIterator[Lockstep]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serve(alone))
        channel = await stack.enter_async_context(open_channel(worker.address))
        lockstep = Lockstep([first, worker_pb2_grpc.WorkerServiceStub(channel)])
        yield lockstep
        lockstep.cancel()


def make_requests(alone: Runner, seed: int) -> list[Wanted]:
    rng, requests = random.Random(seed), []
    for sampling in SAMPLINGS:
        prompt = [rng.randrange(3, 250) for _ in range(rng.randrange(3, 40))]
        truth = generate(alone, prompt, 30, sampling=sampling)
        requests.append(Wanted(prompt, sampling, truth))
    alone.release_all()
    return requests


async def test_texts_of_two_stages_are_those_of_one_process(
    alone: Runner, two_stages: RankedWorker
) -> None:
    requests = make_requests(alone, 1)
    async with in_lockstep(alone, two_stages) as lockstep:
        assert await serve_all(lockstep, list(requests), 1) > 20
        assert DraftSource.NGRAM in lockstep.draft_sources
    assert all(wanted.is_done for wanted in requests)


async def test_plans_without_common_rows_overlap_and_say_the_same(
    alone: Runner, two_stages: RankedWorker
) -> None:
    requests = make_requests(alone, 2)
    async with in_lockstep(alone, two_stages) as lockstep:
        assert await serve_overlapped(lockstep, requests, 2, 2) > 20
    assert all(wanted.is_done for wanted in requests)


async def test_plans_with_common_rows_follow_each_other(
    alone: Runner, two_stages: RankedWorker
) -> None:
    async with in_lockstep(alone, two_stages) as lockstep:
        await lockstep.send(plan(lockstep.next_sequence(), 0, admit=True))
        for _ in range(4):
            await lockstep.send(plan(lockstep.next_sequence(), 0))
        # The slot is given to another request while its last one is on its way.
        again = plan(lockstep.next_sequence(), 0, admit=True, released_slots=to_bytes([0]))
        await lockstep.send(again)
        answers = [await lockstep.read() for _ in range(6)]
    lengths = [from_bytes(answer.lengths).tolist() for answer in answers]
    assert lengths[0] == lengths[5]
    assert lengths[1] > lengths[0]


async def test_what_is_wrong_with_requests_is_found_alike(
    alone: Runner, two_stages: RankedWorker
) -> None:
    wrong: list[dict[str, Any]] = [
        {"tokens": [1, 2, 3, 4, 5000]},
        {"sampling": {"grammar": "start: ("}},
    ]
    async with in_lockstep(alone, two_stages) as lockstep:
        for slot, fields in enumerate(wrong):
            request = plan(lockstep.next_sequence(), slot, admit=True, **fields)
            answer = await lockstep.execute(request)
            assert [error.slot for error in answer.errors] == [slot]
        # A plan without a pass, right after one with a pass.
        await lockstep.send(plan(lockstep.next_sequence(), 2, admit=True))
        release = worker_pb2.ExecuteRequest(
            sequence=lockstep.next_sequence(), released_slots=to_bytes([0, 1])
        )
        await lockstep.send(release)
        assert not (await lockstep.read()).errors
        assert not (await lockstep.read()).errors


async def test_a_plan_to_a_taken_slot_ends_its_stream_alone(two_stages: RankedWorker) -> None:
    async with stub_of(two_stages) as stub:
        call = stub.Execute()
        await call.write(plan(1, 1, admit=True))
        await call.write(plan(2, 0, admit=True))
        await call.write(plan(3, 0, admit=True))
        answers = [await asyncio.wait_for(call.read(), 60) for _ in range(2)]
        assert [answer.sequence for answer in answers] == [1, 2]
        assert "admissions.slot: 0 is held" in await call.details()
        again = stub.Execute()
        await again.write(plan(1, 0, admit=True))
        answer = await asyncio.wait_for(again.read(), 60)
        assert len(from_bytes(answer.token_ids)) == 1
        again.cancel()


async def test_the_first_stage_goes_on_while_the_second_is_at_work(
    two_stages: RankedWorker, trace: Path
) -> None:
    _, second = two_stages.ranks()
    async with stub_of(two_stages) as stub:
        call = stub.Execute()
        # The second stage is in the middle of its plan for as long as it is held.
        os.kill(second, signal.SIGSTOP)
        try:
            before = passes_of(trace, 0)
            await call.write(plan(1, 0, admit=True))
            await call.write(plan(2, 1, admit=True))
            await asyncio.to_thread(wait_for_passes, trace, len(before) + 2)
        finally:
            os.kill(second, signal.SIGCONT)
        answers = [await asyncio.wait_for(call.read(), 60) for _ in range(2)]
        call.cancel()
    assert [answer.sequence for answer in answers] == [1, 2]
    first, following = passes_of(trace, 0)[len(before) : len(before) + 2]
    ends = {entry["pass"]: entry["end_ns"] for entry in passes_of(trace, 1)}
    assert following["pass"] == first["pass"] + 1
    assert following["begin_ns"] < ends[first["pass"]]


async def test_the_description_reports_the_stages(two_stages: RankedWorker, alone: Runner) -> None:
    async with stub_of(two_stages) as stub:
        description = await stub.Describe(worker_pb2.DescribeRequest())
    assert description.num_pipeline_stages == 2
    assert description.vocab_size == alone.engine.model.vocab_size
    assert from_bytes(description.eos_token_ids).tolist() == alone.engine.model.eos_token_ids
    assert len(from_bytes(description.cost_us)) > 0


async def test_three_stages_with_a_draft_model_until_one_dies(
    alone: Runner, path: Path, tmp_path: Path
) -> None:
    requests = make_requests(alone, 3)
    model = load_model(str(path), "float64", "cpu")
    blur(model)
    model.module.save_pretrained(tmp_path)
    add_tokenizer(tmp_path)
    drafter = ("--drafter", "draft_model", "--drafter-model", str(tmp_path))
    worker = RankedWorker(path, *FLOAT64, "3", *drafter)
    try:
        async with stub_of(worker) as stub:
            # A process alone has another drafter here, so only texts are compared.
            lockstep = Lockstep([stub])
            assert await serve_overlapped(lockstep, requests, 2, 3) > 20
            assert DraftSource.DRAFT_MODEL in lockstep.draft_sources
            assert all(wanted.is_done for wanted in requests)
            ranks = worker.ranks()
            assert len(ranks) == 3
            await lockstep.send(plan(lockstep.next_sequence(), 0))
            os.kill(ranks[1], signal.SIGKILL)
            # All others end, and with them the process that has started them.
            assert await asyncio.to_thread(worker.wait) != 0
            assert not worker.ranks()
    finally:
        worker.end()


@asynccontextmanager
async def stub_of(worker: RankedWorker) -> AsyncIterator[Any]:
    async with open_channel(worker.address) as channel:
        yield worker_pb2_grpc.WorkerServiceStub(channel)


def wait_for_passes(trace: Path, number: int) -> None:
    """Waits until the first stage has done so many."""
    deadline = time.monotonic() + 20
    while len(passes_of(trace, 0)) < number:
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


def passes_of(trace: Path, stage: int) -> list[dict[str, int]]:
    text = (trace / f"stage-{stage}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
