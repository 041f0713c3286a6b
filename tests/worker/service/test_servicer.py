"""A real server and a real client, and the stream of plans between them."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import grpc
import pytest

from optimist.common.v1 import draft_source_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes
from optimist_worker.execution.executor import DeviceLostError
from optimist_worker.runner.runner import Runner
from optimist_worker.service.plan_stream import MOST_PLANS, PlanStream
from optimist_worker.service.servicer import WorkerServicer
from tests.checkpoints import VOCAB_SIZE
from tests.worker.call import COSTS, Stub, first_plan, read
from tests.worker.step import BLOCK_SIZE, MAX_MODEL_LEN, NUM_BLOCKS


async def test_describe(stub: Stub, llama: Runner) -> None:
    description = await stub.Describe(worker_pb2.DescribeRequest())
    assert description.model == llama.engine.model.name
    assert description.vocab_size == VOCAB_SIZE
    assert description.max_model_len == MAX_MODEL_LEN
    assert (description.block_size, description.num_blocks) == (BLOCK_SIZE, NUM_BLOCKS)
    assert (description.max_num_seqs, description.max_num_batched_tokens) == (16, 2048)
    assert from_bytes(description.eos_token_ids).tolist() == [2]
    assert from_bytes(description.cost_num_tokens).tolist() == [1, 2, 4]
    assert from_bytes(description.cost_us).tolist() == [70, 70, 90]
    assert description.drafter == draft_source_pb2.DRAFT_SOURCE_UNSPECIFIED
    assert (description.max_drafter_tokens, description.max_drafter_depth) == (0, 0)


async def test_a_client_that_goes_away_leaves_the_worker_usable(stub: Stub) -> None:
    for _ in range(3):
        call = stub.Execute()
        await call.write(first_plan(1, 0))
        call.cancel()
    call = stub.Execute()
    await call.write(first_plan(1, 0))
    assert not (await read(call)).errors
    call.cancel()


class StuckStep:
    """Holds every forward pass, and then has it fail."""

    def __init__(self) -> None:
        self.is_reached, self.goes_on = threading.Event(), threading.Event()

    def forward(self, **_: object) -> None:
        self.is_reached.set()
        assert self.goes_on.wait(20)
        raise RuntimeError("it was stuck")


@pytest.fixture
def stuck(llama: Runner, monkeypatch: pytest.MonkeyPatch) -> Iterator[StuckStep]:
    stuck = StuckStep()
    monkeypatch.setattr(llama.engine.model.module, "forward", stuck.forward)
    yield stuck
    stuck.goes_on.set()


async def one_plan() -> AsyncIterator[worker_pb2.ExecuteRequest]:
    yield first_plan(1, 0)
    await asyncio.Event().wait()


def execute(servicer: WorkerServicer) -> Any:
    context: Any = None
    return aclosing(servicer.Execute(one_plan(), context))


async def test_a_stuck_step_is_reported_of_whatever_streams_are_opened(
    llama: Runner, stuck: StuckStep
) -> None:
    servicer = WorkerServicer(llama, COSTS)
    assert servicer.seconds_at_work() == 0.0
    async with execute(servicer) as old, execute(servicer) as new:
        waiting = [asyncio.ensure_future(anext(old))]
        assert await asyncio.to_thread(stuck.is_reached.wait, 20)
        before = servicer.seconds_at_work()
        waiting.append(asyncio.ensure_future(anext(new)))
        await asyncio.sleep(0.01)
        assert servicer.seconds_at_work() > before > 0.0
        stuck.goes_on.set()
        await asyncio.wait_for(asyncio.gather(*waiting), 20)
    servicer.close()
    assert servicer.seconds_at_work() == 0.0


@pytest.fixture
def signals(llama: Runner, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the process is sent; its device is lost."""
    sent: list[int] = []

    def lose() -> None:
        raise DeviceLostError("gone")

    monkeypatch.setattr(signal, "raise_signal", sent.append)
    monkeypatch.setattr(llama.engine.executor, "check_device", lose)
    return sent


async def test_a_lost_device_ends_the_worker_though_the_client_is_gone(
    llama: Runner, stuck: StuckStep, signals: list[int]
) -> None:
    servicer = WorkerServicer(llama, COSTS)
    async with execute(servicer) as call:
        waiting = asyncio.ensure_future(anext(call))
        assert await asyncio.to_thread(stuck.is_reached.wait, 20)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert signals == []
    stuck.goes_on.set()
    servicer.close()
    assert signals == [signal.SIGTERM]


async def test_a_lost_device_is_noticed_outside_steps_too(
    stub: Stub, llama: Runner, signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("an earlier kernel has failed")

    with monkeypatch.context() as patch:
        patch.setattr(llama, "release_all", fail)
        call = stub.Execute()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await read(call)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert signals == [signal.SIGTERM]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_few_plans_are_read_ahead_of_their_answers() -> None:
    num_read = 0

    async def requests() -> AsyncIterator[worker_pb2.ExecuteRequest]:
        nonlocal num_read
        for sequence in range(100):
            num_read += 1
            yield worker_pb2.ExecuteRequest(sequence=sequence)

    stream = PlanStream(requests())
    await settle()
    assert num_read == MOST_PLANS
    taken = [stream.take() for _ in range(MOST_PLANS)]
    assert taken == [worker_pb2.ExecuteRequest(sequence=i) for i in range(MOST_PLANS)]
    stream.sent()
    await settle()
    assert num_read == MOST_PLANS + 1
    stream.close()
