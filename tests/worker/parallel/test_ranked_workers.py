"""Ranks that share each layer, and stages that divide the layers, say what one process says."""

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import Plan
from optimist_worker.drafters.shape import DraftShape
from optimist_worker.execution.codec import write_plan
from optimist_worker.runner.runner import Runner
from tests.checkpoints import add_tokenizer, tiny_checkpoint
from tests.stack import free_port
from tests.worker.call import first_plan, plan, read, said, serve, serve_port
from tests.worker.drafters.drafting import drafting_runner
from tests.worker.failing_rows import check_failing_rows
from tests.worker.parallel.started_worker import WORKER, StartedWorker
from tests.worker.scenario import Scenario, find_truths
from tests.worker.step import NUM_BLOCKS

SHAPE = DraftShape(5, 5)
OPTIONS = (
    *("--dtype", "float64", "--drafter", "ngram", "--drafter-tokens", "5"),
    *("--max-num-batched-tokens", "256"),
)
KINDS = {"ranks": ("--tensor-parallel-size", "2"), "stages": ("--pipeline-parallel-size", "3")}
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


class Lockstep:
    """Streams to several workers, whose answers must be the same."""

    def __init__(self, stubs: Sequence[Any]) -> None:
        self._calls = [stub.Execute() for stub in stubs]
        self._sequence = 0
        self.draft_sources: set[int] = set()
        """Where the drafts of all answers came from."""
        self.num_accepted = 0

    async def send(self, request: worker_pb2.ExecuteRequest) -> None:
        """Sends a plan, as the next in turn, to all."""
        self._sequence += 1
        request.sequence = self._sequence
        for call in self._calls:
            await call.write(request)

    async def read(self) -> worker_pb2.ExecuteResponse:
        """Returns the answer of all."""
        answers: list[worker_pb2.ExecuteResponse] = [
            await asyncio.wait_for(call.read(), 60) for call in self._calls
        ]
        for answer in answers:
            answer.step_ns = answer.idle_ns = answer.draft_ns = 0
            assert answer == answers[0]
        self.draft_sources.update(from_bytes(answers[0].draft_sources).tolist())
        self.num_accepted += sum(from_bytes(answers[0].num_accepted_tokens).tolist())
        return answers[0]

    def cancel(self) -> None:
        for call in self._calls:
            call.cancel()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # It scales embeddings, slides over every other layer and caps scores.
    return add_tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("ranks"), "gemma2"))


@pytest.fixture(scope="module")
def alone(path: Path) -> Runner:
    """The model held by this process alone."""
    return drafting_runner(path, "ngram", SHAPE)


@pytest.fixture(scope="module", params=KINDS)
def worker(request: pytest.FixtureRequest, path: Path) -> Iterator[StartedWorker]:
    """Two ranks that share each layer, started by torchrun, or three stages."""
    command: Sequence[str] = WORKER
    if request.param == "ranks":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        command = [*torchrun, "--master-port", str(free_port()), "-m", "optimist_worker"]
    worker = StartedWorker(path, *OPTIONS, *KINDS[request.param], command=command)
    yield worker
    worker.end()


@pytest.fixture
def is_staged(request: pytest.FixtureRequest) -> bool:
    return bool(request.node.callspec.params["worker"] == "stages")


@pytest.fixture
async def lockstep(
    alone: Runner, worker: StartedWorker, is_staged: bool, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Lockstep]:
    if is_staged:
        # The first stage does not know where grammars stand, and drafts nothing from them.
        monkeypatch.setattr(alone.engine.masks, "draft", lambda *_: None)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serve(alone))
        lockstep = Lockstep([first, await stack.enter_async_context(worker.stub())])
        yield lockstep
        lockstep.cancel()


async def test_texts_are_those_of_one_process_though_plans_overlap(
    alone: Runner, lockstep: Lockstep, is_staged: bool
) -> None:
    """Among stages, of two scenarios each has a plan of its own in flight."""
    truths = find_truths(alone, SAMPLINGS, 30)
    scenarios = [
        Scenario(seed, truths, range(2 * seed, 2 * seed + 2), range(48 * seed, 48 * seed + 48))
        for seed in (0, 1)
    ]
    for scenario, other in zip(scenarios, scenarios[::-1], strict=True):
        scenario.others = [other]
    waiting = deque((scenario, scenario.plans(15)) for scenario in scenarios)
    in_flight: deque[tuple[Scenario, Iterator[Plan]]] = deque()
    num_overlapped = 0
    while waiting or in_flight:
        while waiting and len(in_flight) < (2 if is_staged else 1):
            scenario, plans = waiting.popleft()
            if (made := next(plans, None)) is not None:
                num_overlapped += bool(in_flight)
                await lockstep.send(write_plan(made))
                in_flight.append((scenario, plans))
        if in_flight:
            answer = await lockstep.read()
            assert not answer.errors
            scenario, plans = in_flight.popleft()
            scenario.note(said(answer))
            waiting.append((scenario, plans))
    assert (num_overlapped > 10) == is_staged
    assert lockstep.num_accepted > 10
    assert DraftSource.NGRAM in lockstep.draft_sources


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


async def test_rows_that_fail_where_nothing_is_read_end_their_requests_and_nothing_else(
    alone: Runner, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As inside of captured steps."""
    padding = drafting_runner(path, "ngram", SHAPE, reads_sizes=False, most_tokens=512)
    async with serve_port(padding) as port:
        await check_failing_rows(alone, port, caplog)


async def test_a_plan_to_a_taken_slot_ends_its_stream_alone(
    worker: StartedWorker, alone: Runner, is_staged: bool
) -> None:
    async with worker.stub() as stub:
        description = await stub.Describe(worker_pb2.DescribeRequest())
        assert description.num_pipeline_stages == (3 if is_staged else 1)
        assert description.vocab_size == alone.engine.model.vocab_size
        assert description.num_blocks == NUM_BLOCKS
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
async def test_a_rank_that_dies_takes_the_worker_with_it(
    worker: StartedWorker, is_staged: bool
) -> None:
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
    if is_staged:
        assert "exit codes by rank: [1, -9" in worker.log
    assert not worker.ranks()
