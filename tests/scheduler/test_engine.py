"""The whole scheduler over real sockets, with a fake worker and a fake proposer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.channel import open_channel
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.server import GrpcServer
from optimist_scheduler import gateway_stream
from optimist_scheduler.engine import Engine
from optimist_scheduler.servicer import SchedulerServicer
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.worker_link import WorkerLink
from tests.scheduler.fake_services import (
    FakeProposerServicer,
    FakeWorkerServicer,
    serve_proposer,
    serve_scheduler,
    serve_worker,
)
from tests.scheduler.fake_worker import FakeWorker, expected_output

PROMPT = [3, 1, 4, 1, 5]
VOCAB_SIZE = 50


def truth(prompt: list[int], max_tokens: int = 20) -> list[int]:
    return expected_output(prompt, VOCAB_SIZE, len(prompt) + max_tokens, set())


def add(handle: int, prompt: list[int], **values: Any) -> scheduler_pb2.ConnectRequest:
    predicted = values.pop("predicted", [])
    values = {"max_tokens": 20, "request_id": f"r{handle}", **values}
    return scheduler_pb2.ConnectRequest(
        add=scheduler_pb2.Add(
            handle=handle,
            prompt_token_ids=to_bytes(prompt),
            predicted_token_ids=to_bytes(predicted),
            **values,
        )
    )


class Answers:
    """Collects what a stream says until as many requests have ended as were added."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, scheduler_pb2.Finished] = {}

    async def read(self, call: Any, num_requests: int) -> None:
        while len(self.finished) < num_requests:
            self.take(await asyncio.wait_for(call.read(), 20))

    def take(self, response: Any) -> None:
        tokens = iter(from_bytes(response.token_ids).tolist())
        counts = from_bytes(response.num_tokens).tolist()
        for handle, count in zip(from_bytes(response.handles).tolist(), counts, strict=True):
            self.tokens.setdefault(handle, []).extend(next(tokens) for _ in range(count))
        for finished in response.finished:
            self.finished[finished.handle] = finished


async def ask(stub: Any, *commands: scheduler_pb2.ConnectRequest) -> Answers:
    call, answers = stub.Connect(), Answers()
    for command in commands:
        await call.write(command)
    await answers.read(call, len(commands))
    call.cancel()
    return answers


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture
def worker() -> FakeWorkerServicer:
    return FakeWorkerServicer(FakeWorker(eos_token_ids=(2,)))


@pytest.fixture
def proposer() -> FakeProposerServicer:
    return FakeProposerServicer()


@pytest.fixture
async def worker_port(worker: FakeWorkerServicer) -> AsyncIterator[int]:
    async with serve_worker(worker) as port:
        yield port


@pytest.fixture
async def proposer_port(proposer: FakeProposerServicer) -> AsyncIterator[int]:
    async with serve_proposer(proposer) as port:
        yield port


async def test_requests_of_one_stream_get_what_the_model_says(worker_port: int) -> None:
    prompts = {handle: [handle, 7, handle] for handle in range(10)}
    async with serve_scheduler(worker_port, []) as (_, stub):
        answers = await ask(stub, *(add(handle, prompt) for handle, prompt in prompts.items()))
    assert answers.tokens == {handle: truth(prompt) for handle, prompt in prompts.items()}
    assert {end.reason for end in answers.finished.values()} == {scheduler_pb2.FINISH_REASON_LENGTH}
    assert answers.finished[0].num_passes == 20


async def test_describe_tells_model_and_limits(worker_port: int) -> None:
    async with serve_scheduler(worker_port, []) as (_, stub):
        response = await stub.Describe(scheduler_pb2.DescribeRequest())
    assert (response.model, response.vocab_size, response.max_model_len) == ("fake", 50, 64)
    assert response.kv_capacity_tokens == 32 * 4
    assert from_bytes(response.eos_token_ids).tolist() == [2]


async def test_a_right_prediction_saves_passes(
    worker_port: int, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    async with serve_scheduler(worker_port, [proposer_port], proposer_wait_ms=2000) as (_, stub):
        answers = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
        await until(lambda: proposer.closed == ["r1"])
    end = answers.finished[1]
    assert answers.tokens[1] == truth(PROMPT)
    assert end.accepted_prediction_tokens >= 14
    assert end.rejected_prediction_tokens == 0
    assert end.num_passes + end.accepted_prediction_tokens == 20


async def test_a_wrong_prediction_changes_no_text(worker_port: int, proposer_port: int) -> None:
    predicted = truth(PROMPT)
    predicted[6:] = [(token + 1) % VOCAB_SIZE for token in predicted[6:]]
    async with serve_scheduler(worker_port, [proposer_port], proposer_wait_ms=2000) as (_, stub):
        answers = await ask(stub, add(1, PROMPT, predicted=predicted))
    end = answers.finished[1]
    assert answers.tokens[1] == truth(PROMPT)
    assert end.num_passes + end.accepted_prediction_tokens == 20
    assert end.accepted_prediction_tokens <= 6
    assert end.rejected_prediction_tokens <= 14


async def test_a_proposer_that_breaks_mid_answer_costs_no_text(
    worker: FakeWorkerServicer,
    worker_port: int,
    proposer_port: int,
    proposer: FakeProposerServicer,
) -> None:
    worker.step_seconds = 0.02
    proposer.break_at, proposer.window_tokens = {2}, 2
    async with serve_scheduler(worker_port, [proposer_port]) as (_, stub):
        answers = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
    assert answers.tokens[1] == truth(PROMPT)
    assert answers.finished[1].reason == scheduler_pb2.FINISH_REASON_LENGTH


async def test_a_proposer_that_lost_its_memory_is_told_everything_again(
    worker: FakeWorkerServicer,
    worker_port: int,
    proposer_port: int,
    proposer: FakeProposerServicer,
) -> None:
    worker.step_seconds = 0.01
    proposer.window_tokens = 1
    prompt, predicted = [9, 9], truth([9, 9], 40)
    async with serve_scheduler(worker_port, [proposer_port], proposer_wait_ms=2000) as (_, stub):
        call, answers = stub.Connect(), Answers()
        await call.write(add(1, prompt, predicted=predicted, max_tokens=40))
        answers.take(await call.read())
        proposer.forget()
        await answers.read(call, 1)
        call.cancel()
    assert answers.tokens[1] == predicted
    assert proposer.num_gaps == 1
    assert answers.finished[1].accepted_prediction_tokens >= 10


async def test_a_silent_proposer_is_waited_for_once(
    worker_port: int, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    proposer.delay_seconds = 3600
    async with serve_scheduler(worker_port, [proposer_port], proposer_wait_ms=200) as (_, stub):
        started = asyncio.get_running_loop().time()
        answers = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
        # Twenty waits would take four seconds; how fast the rest is does not matter.
        assert asyncio.get_running_loop().time() - started < 4
    assert answers.tokens[1] == truth(PROMPT)
    assert answers.finished[1].num_passes == 20


async def test_an_unreachable_proposer_is_not_waited_for(worker_port: int) -> None:
    async with serve_scheduler(worker_port, [1], proposer_wait_ms=3_600_000) as (_, stub):
        answers = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
    assert answers.tokens[1] == truth(PROMPT)


async def test_a_broken_worker_stream_is_a_pause(
    worker: FakeWorkerServicer, worker_port: int
) -> None:
    worker.break_at, worker.spoil_at = {3, 9}, {14}
    prompts = {handle: [handle, 7, handle] for handle in range(6)}
    async with serve_scheduler(worker_port, []) as (_, stub):
        answers = await ask(stub, *(add(handle, prompt) for handle, prompt in prompts.items()))
    assert answers.tokens == {handle: truth(prompt) for handle, prompt in prompts.items()}
    assert worker.num_streams == 4


async def test_a_worker_that_was_away_is_found_again(worker: FakeWorkerServicer) -> None:
    worker.step_seconds = 0.01
    smaller = FakeWorkerServicer(FakeWorker(num_blocks=10, max_num_seqs=1))
    async with AsyncExitStack() as stack:
        async with serve_worker(worker) as port:
            scheduler = serve_scheduler(port, [])
            engine, stub = await stack.enter_async_context(scheduler)
            call, answers = stub.Connect(), Answers()
            await call.write(add(1, PROMPT))
            answers.take(await call.read())
        await until(lambda: engine.num_running == 1)
        async with serve_worker(smaller, port):
            await answers.read(call, 1)
            call.cancel()
    assert answers.tokens[1] == truth(PROMPT)
    assert smaller.num_streams == 1


async def test_a_worker_that_always_fails_ends_the_request_and_not_the_scheduler(
    worker: FakeWorkerServicer, worker_port: int
) -> None:
    worker.spoil_at = set(range(1, 6))
    async with serve_scheduler(worker_port, []) as (_, stub):
        answers = await ask(stub, add(1, PROMPT))
        assert answers.finished[1].reason == scheduler_pb2.FINISH_REASON_ERROR
        answers = await ask(stub, add(2, PROMPT))
    assert answers.tokens[2] == truth(PROMPT)


async def test_a_proposer_that_was_away_is_used_again(
    worker: FakeWorkerServicer, worker_port: int, proposer: FakeProposerServicer
) -> None:
    worker.step_seconds = 0.02
    async with AsyncExitStack() as stack:
        async with serve_proposer(proposer) as port:
            scheduler = serve_scheduler(worker_port, [port], proposer_wait_ms=2000)
            _, stub = await stack.enter_async_context(scheduler)
            await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
        assert proposer.num_batches > 0
        other = FakeProposerServicer()
        async with serve_proposer(other, port):
            call, answers = stub.Connect(), Answers()
            await call.write(add(2, PROMPT, max_tokens=50, predicted=truth(PROMPT, 50)))
            await answers.read(call, 1)
            call.cancel()
            # The channel may have needed longer than that request to find the port again.
            for handle in range(3, 20):
                if other.num_batches:
                    break
                await ask(stub, add(handle, PROMPT, predicted=truth(PROMPT)))
    assert other.num_batches > 0
    assert answers.tokens[2] == truth(PROMPT, 50)


async def test_several_proposers_take_turns_and_fill_each_others_gaps(
    worker: FakeWorkerServicer, worker_port: int, proposer: FakeProposerServicer
) -> None:
    worker.step_seconds = 0.005
    # Memory of their own: each batch misses what the other was told.
    second = FakeProposerServicer()
    async with (
        serve_proposer(proposer) as one,
        serve_proposer(second) as two,
        serve_scheduler(worker_port, [one, two]) as (_, stub),
    ):
        answers = await ask(stub, add(1, PROMPT, max_tokens=40, predicted=truth(PROMPT, 40)))
    assert answers.tokens[1] == truth(PROMPT, 40)
    assert min(proposer.num_batches, second.num_batches) > 0
    assert proposer.num_gaps + second.num_gaps > 0


async def test_a_stream_that_is_not_read_ends_with_an_error(
    worker_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_stream, "MAX_WAITING_RESPONSES", 0)
    async with serve_scheduler(worker_port, []) as (engine, stub):
        call = stub.Connect()
        await call.write(add(1, PROMPT))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Answers().read(call, 1)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert engine.num_running + engine.num_waiting == 0


async def test_nothing_is_served_before_the_worker_is_reached() -> None:
    settings = SchedulerSettings(worker="127.0.0.1:1", proposers=[])
    engine = Engine(WorkerLink(settings), settings)
    server = GrpcServer("127.0.0.1", 0)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(
        SchedulerServicer(engine), server.server
    )
    port = await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Describe(scheduler_pb2.DescribeRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Connect().read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await server.server.stop(0)


async def test_requests_of_a_stream_that_ends_are_aborted(
    worker: FakeWorkerServicer, worker_port: int
) -> None:
    worker.step_seconds = 0.02
    async with serve_scheduler(worker_port, []) as (engine, stub):
        call = stub.Connect()
        for handle in range(6):
            await call.write(add(handle, [handle + 1], max_tokens=50))
        await until(lambda: engine.num_running == 4 and engine.num_waiting == 2)
        call.cancel()
        await until(lambda: engine.num_running + engine.num_waiting == 0)
        answers = await ask(stub, add(7, PROMPT))
        assert answers.tokens[7] == truth(PROMPT)
        assert engine.scheduler.num_free_blocks == 32


async def test_an_aborted_request_is_not_answered(
    worker: FakeWorkerServicer, worker_port: int
) -> None:
    worker.step_seconds = 0.02
    async with serve_scheduler(worker_port, []) as (_, stub):
        call, answers = stub.Connect(), Answers()
        await call.write(add(1, [1], max_tokens=50))
        answers.take(await call.read())
        await call.write(scheduler_pb2.ConnectRequest(abort=scheduler_pb2.Abort(handle=1)))
        await call.write(scheduler_pb2.ConnectRequest(abort=scheduler_pb2.Abort(handle=99)))
        await call.write(add(2, PROMPT))
        await answers.read(call, 1)
        call.cancel()
    assert list(answers.finished) == [2]
    assert answers.tokens[2] == truth(PROMPT)


async def test_an_abort_is_answered_with_the_account_if_that_is_wanted(
    worker: FakeWorkerServicer, worker_port: int
) -> None:
    worker.step_seconds = 0.02
    async with serve_scheduler(worker_port, []) as (_, stub):
        call, answers = stub.Connect(), Answers()
        await call.write(add(1, [1], max_tokens=50))
        answers.take(await call.read())
        abort = scheduler_pb2.Abort(handle=1, wants_finished=True)
        await call.write(scheduler_pb2.ConnectRequest(abort=abort))
        await answers.read(call, 1)
        call.cancel()
    assert answers.finished[1].reason == scheduler_pb2.FINISH_REASON_ABORTED
    assert answers.finished[1].num_passes >= 1


async def test_a_stream_without_further_commands_ends_with_its_last_request(
    worker_port: int,
) -> None:
    answers = Answers()
    async with serve_scheduler(worker_port, []) as (_, stub):
        async for response in stub.Connect(iter([add(1, PROMPT), add(2, [8])])):
            answers.take(response)
    assert answers.tokens == {1: truth(PROMPT), 2: truth([8])}


async def test_a_request_that_cannot_run_is_refused_with_the_field(worker_port: int) -> None:
    bad = add(3, PROMPT)
    bad.add.prompt_token_ids = b"123"
    async with serve_scheduler(worker_port, []) as (_, stub):
        answers = await ask(stub, add(1, []), add(2, [1] * 64), bad, add(4, PROMPT))
    messages = {handle: end.message for handle, end in answers.finished.items()}
    assert messages[1].startswith("prompt_token_ids: must not be empty")
    assert messages[2].startswith("prompt_token_ids: must be at most 63 tokens")
    assert messages[3] == "prompt_token_ids: 3 bytes are no int32 column"
    assert answers.tokens == {4: truth(PROMPT)}


async def test_a_row_that_fails_ends_alone(worker: FakeWorkerServicer, worker_port: int) -> None:
    worker.worker.failing = {"r1"}
    async with serve_scheduler(worker_port, []) as (engine, stub):
        answers = await ask(stub, add(1, [1]), add(2, PROMPT))
        assert engine.scheduler.num_free_blocks == 32
    assert answers.finished[1].reason == scheduler_pb2.FINISH_REASON_ERROR
    assert answers.finished[1].message == "r1 fails"
    assert answers.tokens == {2: truth(PROMPT)}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (scheduler_pb2.ConnectRequest(), "command: is not set"),
        (add(1, [5]), "add.handle: 1 is in use"),
    ],
)
async def test_a_command_that_breaks_the_contract_ends_the_stream(
    second: scheduler_pb2.ConnectRequest,
    message: str,
    worker: FakeWorkerServicer,
    worker_port: int,
) -> None:
    worker.step_seconds = 0.05
    async with serve_scheduler(worker_port, []) as (engine, stub):
        call = stub.Connect()
        await call.write(add(1, PROMPT))
        await call.write(second)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Answers().read(call, 2)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == message
        assert engine.num_running + engine.num_waiting == 0
