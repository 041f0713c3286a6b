"""Ranks that share each layer, and stages that divide the layers, say what one process says."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.sampling import SamplingParams
from optimist_worker.drafters.shape import DraftShape
from optimist_worker.model.model import load_model
from optimist_worker.runner.runner import Runner
from tests.checkpoints import add_tokenizer, tiny_checkpoint
from tests.worker.call import first_plan, plan, read, serve, serve_port
from tests.worker.drafters.drafting import drafting_runner, save_blurred
from tests.worker.failing_rows import check_failing_rows
from tests.worker.parallel.lockstep import Lockstep, Wanted, serve_all
from tests.worker.parallel.started_worker import StartedWorker
from tests.worker.step import NUM_BLOCKS, generate

FLOAT64 = ("--dtype", "float64")
KINDS = {"ranks": "--tensor-parallel-size", "stages": "--pipeline-parallel-size"}
GRAMMAR = 'start: "{" /[a-z]{2,4}/ (":" /[0-9]{1,3}/)* "}" /[A-Z ]{4,}/'
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=7),
    SamplingParams(temperature=0.8, seed=8, top_k=20, top_p=0.9, frequency_penalty=0.4),
    SamplingParams(temperature=0.7, seed=9, grammar=GRAMMAR),
    SamplingParams(grammar=GRAMMAR, num_logprobs=2),
    SamplingParams(
        temperature=1.2, seed=10, min_p=0.01, repetition_penalty=1.2, logit_bias={9: 2.0}
    ),
    SamplingParams(num_logprobs=3, num_prompt_logprobs=1),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # It scales embeddings, slides over every other layer and caps scores.
    return add_tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("ranks"), "gemma2"))


@pytest.fixture(scope="module")
def alone(path: Path) -> Runner:
    """The model held by this process alone."""
    return drafting_runner(path, "ngram", DraftShape(5, 5))


@pytest.fixture(scope="module", params=KINDS)
def worker(request: pytest.FixtureRequest, path: Path) -> Iterator[StartedWorker]:
    """Two ranks that share each layer, or two stages."""
    options = ["--drafter", "ngram", "--drafter-tokens", "5", KINDS[request.param], "2"]
    worker = StartedWorker(path, *FLOAT64, *options)
    yield worker
    worker.end()


@pytest.fixture
async def lockstep(alone: Runner, worker: StartedWorker) -> AsyncIterator[Lockstep]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serve(alone))
        lockstep = Lockstep([first, await stack.enter_async_context(worker.stub())])
        yield lockstep
        lockstep.cancel()


def make_requests(alone: Runner, seed: int) -> list[Wanted]:
    rng, requests = random.Random(seed), []
    for sampling in SAMPLINGS:
        prompt = [rng.randrange(3, 250) for _ in range(rng.randrange(3, 40))]
        truth = generate(alone, prompt, 30, sampling=sampling)
        requests.append(Wanted(prompt, sampling, truth))
    return requests


@pytest.mark.parametrize("num_groups", [1, 2])
async def test_texts_are_those_of_one_process_though_plans_overlap(
    alone: Runner, lockstep: Lockstep, num_groups: int
) -> None:
    requests = make_requests(alone, num_groups)
    num_overlapped = await serve_all(lockstep, requests, num_groups, num_groups)
    assert (num_overlapped > 20) == (num_groups > 1)
    assert lockstep.num_accepted > 20
    assert DraftSource.NGRAM in lockstep.draft_sources


async def test_plans_with_common_rows_follow_each_other(lockstep: Lockstep) -> None:
    # The slot is given to another request while its last one is on its way.
    again = first_plan(0, 0)
    again.released_slots = to_bytes([0])
    for request in [first_plan(0, 0), *(plan(0, 0) for _ in range(4)), again]:
        await lockstep.send(request)
    answers = [await lockstep.read() for _ in range(6)]
    lengths = [from_bytes(answer.lengths).tolist() for answer in answers]
    assert lengths[0] == lengths[5]
    assert lengths[1] > lengths[0]


async def test_what_is_wrong_with_requests_is_found_alike(lockstep: Lockstep) -> None:
    bad_grammar = first_plan(0, 1, sampling=SamplingParams(grammar="start: ("))
    for slot, request in enumerate([first_plan(0, 0, tokens=[1, 2, 3, 4, 5000]), bad_grammar]):
        await lockstep.send(request)
        assert [error.slot for error in (await lockstep.read()).errors] == [slot]
    # A plan without a pass, right after one with a pass.
    await lockstep.send(first_plan(0, 2))
    await lockstep.send(worker_pb2.ExecuteRequest(released_slots=to_bytes([0, 1])))
    assert not (await lockstep.read()).errors
    assert not (await lockstep.read()).errors


async def test_rows_that_fail_end_their_requests_and_nothing_else(
    alone: Runner, worker: StartedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    await check_failing_rows(alone, worker.port, caplog)


@pytest.mark.parametrize("reads_sizes", [True, False])
async def test_rows_that_fail_in_one_process_end_their_requests_and_nothing_else(
    alone: Runner, path: Path, caplog: pytest.LogCaptureFixture, reads_sizes: bool
) -> None:
    """Without reading sizes it is as inside of captured steps."""
    shape, runner = DraftShape(5, 5), alone
    if not reads_sizes:
        runner = drafting_runner(path, "ngram", shape, reads_sizes=False, most_tokens=512)
    async with serve_port(runner) as port:
        await check_failing_rows(drafting_runner(path, "ngram", shape), port, caplog)


async def test_a_plan_to_a_taken_slot_ends_its_stream_alone(
    worker: StartedWorker, alone: Runner, request: pytest.FixtureRequest
) -> None:
    async with worker.stub() as stub:
        description = await stub.Describe(worker_pb2.DescribeRequest())
        is_staged = request.node.callspec.params["worker"] == "stages"
        assert description.num_pipeline_stages == (2 if is_staged else 1)
        assert description.vocab_size == alone.engine.model.vocab_size
        assert description.num_blocks == NUM_BLOCKS
        assert from_bytes(description.eos_token_ids).tolist() == alone.engine.model.eos_token_ids
        assert len(from_bytes(description.cost_us)) > 0
        call = stub.Execute()
        for sequence, slot in ((1, 1), (2, 0), (3, 0)):
            await call.write(first_plan(sequence, slot))
        assert [(await read(call)).sequence for _ in range(2)] == [1, 2]
        assert "admissions.slot: 0 is held" in await call.details()
        again = stub.Execute()
        await again.write(first_plan(1, 0))
        assert len(from_bytes((await read(again)).token_ids)) == 1
        again.cancel()


# The last test, because it ends the worker that others share.
async def test_a_rank_that_dies_takes_the_worker_with_it(worker: StartedWorker) -> None:
    async with worker.stub() as stub:
        call = stub.Execute()
        await call.write(first_plan(1, 0))
        await read(call)
        os.kill(worker.ranks()[1], signal.SIGKILL)
        await call.write(plan(2, 0))
        # What fails with it is not reported as the request's fault: the scheduler keeps it.
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await read(call)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert await asyncio.to_thread(worker.wait) == 1
    assert "exit codes by rank: [1, -9]" in worker.log
    assert not worker.ranks()


async def test_three_stages_with_a_draft_model_end_in_good_order(
    alone: Runner, path: Path, tmp_path: Path
) -> None:
    requests = make_requests(alone, 3)
    save_blurred(load_model(str(path), "float64", "cpu"), tmp_path)
    drafter = ("--drafter", "draft_model", "--drafter-model", str(tmp_path))
    worker = StartedWorker(path, *FLOAT64, KINDS["stages"], "3", *drafter)
    try:
        async with worker.stub() as stub:
            # A process alone has another drafter here, so only texts are compared.
            lockstep = Lockstep([stub])
            assert await serve_all(lockstep, requests, 3, 2) > 20
            assert DraftSource.DRAFT_MODEL in lockstep.draft_sources
            assert len(worker.ranks()) == 3
    finally:
        worker.end()
    assert worker.process.returncode == 0, worker.log
