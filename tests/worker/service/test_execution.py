"""Plans in flight, over real gRPC, with steps that the test lets end."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes
from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import PlannedRow, WindowUpdate
from optimist_worker.execution.codec import write_plan
from optimist_worker.execution.executor import Executor, FinishedStep, RunningStep
from optimist_worker.runner.runner import Runner
from tests.worker.call import PROMPT, Stub, first_plan, plan, read, said, until
from tests.worker.step import plain_text, plan_rows

SAMPLED = SamplingParams(temperature=0.8, seed=21)


class Device:
    """The executor of a device that runs by itself: steps end when the test lets them.

    What a step does to the state is there at once, as it is for all that is launched after it.
    """

    most_plans = 2

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.num_started = self.num_awaited = 0
        self._permits = threading.Semaphore(0)
        self._wake: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def on_step_end(self, wake: Callable[[], None] | None) -> bool:
        self._wake = wake
        return True

    def launch(self, *arguments: Any) -> Any:
        step = SlowStep(self._executor.launch(*arguments), self)
        self.num_started += 1
        return step

    def allow(self, number: int = 1) -> None:
        self._permits.release(number)
        if self._wake is not None:
            self._wake()

    def wait(self) -> None:
        self.num_awaited += 1
        assert self._permits.acquire(timeout=20)

    @property
    def is_open(self) -> bool:
        if is_open := self._permits.acquire(blocking=False):
            self._permits.release()
        return is_open


class SlowStep:
    """A step that has not ended yet."""

    def __init__(self, step: RunningStep, device: Device) -> None:
        self._step, self._device = step, device

    @property
    def is_over(self) -> bool:
        return self._device.is_open

    def wait(self) -> FinishedStep:
        self._device.wait()
        return self._step.wait()


@pytest.fixture
def truth(llama: Runner) -> list[int]:
    return plain_text(llama, PROMPT, 40, SAMPLED)


@pytest.fixture
def device(llama: Runner, truth: list[int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    device = Device(llama.engine.executor)
    monkeypatch.setattr(llama.engine, "executor", device)
    yield device
    # Whatever a test left behind must not hold the model's thread.
    device.allow(1000)


def start(slot: int = 0, **options: Any) -> worker_pb2.ExecuteRequest:
    return first_plan(1, slot, **{"sampling": SAMPLED, **options})


def tokens(response: worker_pb2.ExecuteResponse) -> list[int]:
    found: list[int] = from_bytes(response.token_ids).tolist()
    return found


async def read_all(call: Any) -> list[worker_pb2.ExecuteResponse]:
    responses = []
    while (response := await asyncio.wait_for(call.read(), 20)) is not grpc.aio.EOF:
        responses.append(response)
    return responses


async def test_rows_of_a_request_that_has_ended_are_answered_with_nothing(
    stub: Stub, llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = stub.Execute()
    await call.write(start(max_length=len(PROMPT) + 1))
    responses = [await read(call)]
    # A pass would fail.
    monkeypatch.setattr(llama.engine.model.module, "forward", None)
    await call.write(plan(2, 0))
    await call.write(plan(3, 0))
    await call.done_writing()
    responses += await read_all(call)
    assert [response.sequence for response in responses] == [1, 2, 3]
    for response in responses[1:]:
        assert tokens(response) == []
        assert from_bytes(response.lengths).tolist() == [len(PROMPT) + 1]
        assert (response.num_tokens, len(response.errors)) == (0, 0)


async def test_a_plan_that_comes_while_a_device_runs_is_launched_at_once(
    truth: list[int], stub: Stub, device: Device
) -> None:
    call = stub.Execute()
    await call.write(start())
    await until(lambda: device.num_started == 1)
    # The model's thread waits for a plan by now.
    await asyncio.sleep(0.02)
    await call.write(plan(2, 0))
    await until(lambda: device.num_started == 2)
    # With two plans the device is full: the third is launched when the first has ended.
    await call.write(plan(3, 0))
    await until(lambda: device.num_awaited == 1)
    await asyncio.sleep(0.02)
    assert device.num_started == 2
    device.allow()
    responses = [await read(call)]
    await until(lambda: device.num_started == 3)
    device.allow(2)
    responses += [await read(call), await read(call)]
    assert [response.sequence for response in responses] == [1, 2, 3]
    assert [tokens(response) for response in responses] == [[token] for token in truth[:3]]
    assert [response.idle_ns for response in responses] == [0, 0, 0]
    call.cancel()


async def test_rows_with_a_grammar_hold_up_the_next_plan(
    stub: Stub, device: Device, llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: list[int] = []
    masks = llama.engine.masks
    monkeypatch.setattr(masks, "open", lambda admission: None)
    monkeypatch.setattr(masks, "commit", lambda slot, token_ids: committed.extend(token_ids))
    call = stub.Execute()
    sampling = SamplingParams(temperature=0.8, seed=21, grammar="start: /a*/")
    await call.write(start(sampling=sampling))
    await call.write(plan(2, 0))
    await until(lambda: device.num_awaited == 1)
    await asyncio.sleep(0.02)
    assert (device.num_started, committed) == (1, [])
    device.allow()
    first = tokens(await read(call))
    await until(lambda: device.num_started == 2)
    assert committed == first
    device.allow()
    assert committed[:1] + tokens(await read(call)) == committed
    call.cancel()


async def test_what_a_device_was_given_before_a_malformed_plan_is_answered(
    stub: Stub, device: Device
) -> None:
    call = stub.Execute()
    await call.write(start())
    await call.write(plan(2, 0))
    malformed = plan(3, 0)
    malformed.num_known_tokens = b"abc"
    await call.write(malformed)
    await until(lambda: device.num_started == 2)
    device.allow(50)
    assert [(await read(call)).sequence for _ in range(2)] == [1, 2]
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await read(call)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "num_known_tokens" in str(error.value.details())
    assert device.num_started == 2
    again = stub.Execute()
    await again.write(start())
    assert len(tokens(await read(again))) == 1
    again.cancel()


@pytest.mark.parametrize(("where", "in_flight"), [("stub", 2), ("device", 1), ("device", 3)])
async def test_plans_ahead_give_the_same_tokens(
    where: str,
    in_flight: int,
    truth: list[int],
    stub: Stub,
    request: pytest.FixtureRequest,
) -> None:
    """Two requests, windows that are partly wrong, plans sent on until both have ended."""
    if where == "device":
        request.getfixturevalue("device").allow(1000)
    guess = [3 if i % 7 == 4 else token for i, token in enumerate(truth)]
    call = stub.Execute()
    for slot in (0, 1):
        await call.write(start(slot, max_length=len(PROMPT) + 40 - 10 * slot))
        await read(call)
    outputs: dict[int, list[int]] = dict.fromkeys((0, 1), truth[:1])
    sequence, unanswered = 1, set[int]()
    rows = [PlannedRow(1, 1, 4, []), PlannedRow(0, 1, 2, [])]
    while min(len(outputs[0]), len(outputs[1]) + 10) < 40:
        while len(unanswered) < in_flight:
            sequence += 1
            unanswered.add(sequence)
            # Made on what is known now, which plans in flight may have moved.
            windows = [
                WindowUpdate(slot, len(output), guess[len(output) :])
                for slot, output in outputs.items()
            ]
            ahead = plan_rows(sequence, rows, windows=windows)
            await call.write(write_plan(ahead))
        response = await read(call)
        unanswered.discard(response.sequence)
        assert not response.errors
        for slot, text in said(response).items():
            outputs[slot] = outputs[slot] + text
    assert outputs == {0: truth, 1: truth[:30]}
    call.cancel()
