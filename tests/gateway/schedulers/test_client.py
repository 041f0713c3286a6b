"""A scheduler that is slow, gone, or back; its messages, and outputs on their way to a reader."""

import asyncio
import gc
from asyncio import sleep
from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_to_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_gateway.core.answer.output import (
    Finished,
    FinishReason,
    StepLogprobs,
    StepOutput,
    TokenLogprobs,
)
from optimist_gateway.core.error import ApiError
from optimist_gateway.schedulers.messages import read_outputs
from optimist_gateway.schedulers.requests import (
    MAX_WAITING_OUTPUTS,
    UNREACHED,
    RequestStream,
    SchedulerUnavailableError,
)
from tests.gateway.fake_scheduler import EOS, FakeScheduler, Script, Step, start_scheduler
from tests.gateway.harness import CHAT, USER, Start, error_of, script_of
from tests.gateway.schedulers.fleet import VOCAB_SIZE, Fleet
from tests.stack import free_port


async def test_an_answer_goes_out_without_its_account_if_the_scheduler_is_lost() -> None:
    async with Fleet(1, 0) as fleet:
        fleet.fakes[0].script = Script([Step([7])], break_stream=True)
        stream = fleet.read()
        assert await stream.next() == [7]
        assert await stream.finish() is None


@pytest.mark.parametrize(
    "columns", [{"handles": b"\1\0\0\0"}, {"handles": b"\1\0"}, {"num_tokens": b"\1\0\0\0"}]
)
async def test_what_is_not_in_the_contract_ends_the_requests_and_not_the_client(
    columns: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with Fleet(1, 0) as fleet:
        (scheduler,) = fleet.fakes
        # The scheduler ends the stream while it waits for commands.
        scheduler.script = Script(raw=lambda _: scheduler_pb2.ConnectResponse(**columns))
        with pytest.raises(SchedulerUnavailableError):
            await fleet.read().next()
        await fleet.until_connected(1)
        gc.collect()
        await sleep(0)
        assert [record for record in caplog.records if record.name == "asyncio"] == []
        scheduler.script = Script([Step([EOS])])
        assert await fleet.read().next() == [EOS]


async def test_a_scheduler_that_takes_no_commands_is_not_waited_for() -> None:
    async with Fleet(1, 0, max_num_requests=1) as fleet:
        fleet.fakes[0].script = Script(hang=True)
        for _ in range(4):
            fleet.read()
        with pytest.raises(SchedulerUnavailableError, match="fast enough"):
            fleet.read()


async def test_an_unreachable_scheduler_is_503_and_found_when_it_comes(start: Start) -> None:
    port = free_port()
    async with start(waits=False, schedulers=[f"127.0.0.1:{port}"]) as gateway:
        for path, status in (("/live", 200), ("/ready", 503), ("/health", 503)):
            response = await gateway.http.get(path)
            assert response.status_code == status
            assert ("retry-after" in response.headers) is (status == 503)
        assert (await gateway.http.get("/health")).json()["reason"] == UNREACHED
        for path in (CHAT, "/tokenize"):
            response = await gateway.post(path, messages=USER)
            assert error_of(response, 503)["code"] == "scheduler_unavailable"
            assert response.headers["retry-after"] == "1"
        assert (await gateway.http.get("/v1/models")).json()["data"][0]["id"] == "tiny"
        script = script_of(gateway.backend, "The quick")
        server, _ = await start_scheduler(FakeScheduler(VOCAB_SIZE, script), port)
        await gateway.until_healthy()
        assert (await gateway.chat()).choices[0].message.content == "The quick"
        await server.stop()


ENDED = Finished(FinishReason.LENGTH)


class Reader:
    """Notes what it gets; pauses the stream after each output if that is wanted."""

    def __init__(self, stream: RequestStream, *, pauses: bool = False) -> None:
        self.stream, self.pauses = stream, pauses
        self.got: list[int | type[Exception]] = []

    def __call__(self, item: StepOutput | Exception) -> None:
        self.got += item.token_ids if isinstance(item, StepOutput) else [type(item)]
        if self.pauses and isinstance(item, StepOutput):
            self.stream.pause()


@pytest.fixture
def aborts() -> list[bool]:
    """How a request was ended: whether its account is wanted."""
    return []


@pytest.fixture
async def stream(aborts: list[bool]) -> RequestStream:
    def abort(*, wants_finished: bool = False) -> None:
        aborts.append(wants_finished)

    return RequestStream(abort)


@pytest.fixture
async def paused(stream: RequestStream) -> Reader:
    """Reads a stream, which is paused."""
    reader = Reader(stream)
    stream.read(reader)
    stream.pause()
    return reader


async def test_what_waits_comes_first_and_then_all_in_order(stream: RequestStream) -> None:
    reader = Reader(stream)
    stream.deliver(StepOutput([1]))
    stream.read(reader)
    stream.deliver(StepOutput([2]))
    stream.pause()
    stream.deliver(StepOutput([3]))
    assert reader.got == [1, 2]
    stream.resume()
    stream.deliver(StepOutput([4], finished=ENDED))
    assert reader.got == [1, 2, 3, 4]


async def test_a_reader_that_has_enough_stops_what_waits(stream: RequestStream) -> None:
    reader = Reader(stream, pauses=True)
    for number in range(3):
        stream.deliver(StepOutput([number]))
    stream.read(reader)
    assert reader.got == [0]
    stream.fail(SchedulerUnavailableError("gone"))
    stream.resume()
    stream.resume()
    assert reader.got == [0, 1, 2]
    stream.resume()
    assert reader.got == [0, 1, 2, SchedulerUnavailableError]


async def test_what_waits_is_bounded(paused: Reader, aborts: list[bool]) -> None:
    for number in range(MAX_WAITING_OUTPUTS + 1):
        paused.stream.deliver(StepOutput([number]))
    assert aborts == [False]
    paused.stream.resume()
    assert paused.got == [*range(MAX_WAITING_OUTPUTS), ApiError]


async def test_nothing_comes_after_the_end(paused: Reader, aborts: list[bool]) -> None:
    stream = paused.stream
    stream.deliver(StepOutput([1]))
    stream.close()
    stream.close()
    stream.deliver(StepOutput([2]))
    stream.resume()
    assert (paused.got, aborts) == ([], [False])


@pytest.mark.parametrize("first", [False, True])
async def test_only_the_account_is_read(paused: Reader, aborts: list[bool], first: bool) -> None:
    stream = paused.stream
    if first:
        stream.deliver(StepOutput([1], finished=ENDED))
    account = stream.finish()
    if not first:
        assert aborts == [True]
        stream.deliver(StepOutput([1]))
        stream.deliver(StepOutput([2], finished=ENDED))
    assert await asyncio.wait_for(account, 5) is ENDED
    assert paused.got == []


async def test_there_is_no_account_of_a_request_that_is_closed(stream: RequestStream) -> None:
    account = stream.finish()
    stream.close()
    assert await asyncio.wait_for(account, 5) is None


def outputs_of(**fields: Any) -> dict[int, StepOutput]:
    """Reads a response in which request 5 got two tokens, of which one was a draft."""
    response = scheduler_pb2.ConnectResponse(
        handles=to_bytes([4, 5]),
        num_tokens=to_bytes([1, 2]),
        token_ids=to_bytes([7, 8, 9]),
        num_accepted_tokens=to_bytes([0, 1]),
        draft_sources=to_bytes([0, fields.pop("draft_source", DraftSource.PREDICTION)]),
    )
    response.MergeFrom(scheduler_pb2.ConnectResponse(**fields))
    return dict(read_outputs(response))


def some_logprobs(**fields: object) -> scheduler_pb2.Logprobs:
    """Returns those of two prompt tokens and of the two new tokens of request 5."""
    usual: Any = {"handle": 5, "first_prompt_position": 3, "num_prompt_tokens": 2}
    usual |= {"num_prompt_candidates": 1, "num_candidates": 2}
    usual["logprobs"] = floats_to_bytes([-1.0, -2.0, -3.0, -4.0])
    usual["candidate_token_ids"] = to_bytes([10, 20, 30, 31, 40, 41])
    usual["candidate_logprobs"] = floats_to_bytes([-0.5, -1.5, -2.5, -2.75, -3.5, -3.75])
    return scheduler_pb2.Logprobs(**usual | fields)


PROMPT = [TokenLogprobs(-1.0, [10], [-0.5]), TokenLogprobs(-2.0, [20], [-1.5])]
TOKENS = [TokenLogprobs(-3.0, [30, 31], [-2.5, -2.75])]
TOKENS += [TokenLogprobs(-4.0, [40, 41], [-3.5, -3.75])]


def test_each_token_gets_its_own() -> None:
    outputs = outputs_of(logprobs=[some_logprobs()])
    assert outputs[4].logprobs is None
    assert (outputs[5].token_ids, outputs[5].finished) == ([8, 9], None)
    assert outputs[5].logprobs == StepLogprobs(3, PROMPT, TOKENS)


def positions_of(positions: bytes, in_prompt: bytes = b"") -> dict[int, StepOutput]:
    message = scheduler_pb2.PredictionPositions(handle=5, positions=positions)
    message.prompt_positions = in_prompt
    return outputs_of(prediction_positions=[message])


WRONG_LOGPROBS: dict[str, list[Any]] = {
    "logprobs": [floats_to_bytes([-1.0, -2.0, -3.0]), floats_to_bytes([-1.0]), b"\0\0\0"],
    "num_prompt_tokens": [-1, 3],
    "num_candidates": [-1, 1],
    "candidate_token_ids": [to_bytes([1])],
    "candidate_logprobs": [floats_to_bytes([1.0])],
}


@pytest.mark.parametrize("name", WRONG_LOGPROBS)
def test_logprobs_that_do_not_fit_are_refused(name: str) -> None:
    for wrong in WRONG_LOGPROBS[name]:
        with pytest.raises(ValueError, match=r"of 3|log-prob|buffer|candidates"):
            outputs_of(logprobs=[some_logprobs(**{name: wrong})])


WRONG_POSITIONS = [(wrong,) for wrong in (to_bytes([1, 2]), b"", to_bytes([-2]), b"\0")]
IN_PROMPT = [(to_bytes([-1]), wrong) for wrong in (to_bytes([1, 2]), to_bytes([-1]), b"\0")]


@pytest.mark.parametrize("wrong", [*WRONG_POSITIONS, *IN_PROMPT])
def test_positions_that_do_not_fit_are_refused(wrong: tuple[bytes]) -> None:
    with pytest.raises(ValueError, match=r"position|buffer"):
        positions_of(*wrong)


def test_what_only_a_later_scheduler_knows_ends_nobody_elses_request() -> None:
    later = max(DraftSource) + 2
    ended = scheduler_pb2.Finished(
        handle=4,
        reason=99,  # type: ignore[arg-type]
        message="the moon is full",
        num_tokens_by_source=to_bytes([3, *[0] * (later - 1), 2]),
        num_cached_tokens=16,
    )
    outputs = outputs_of(finished=[ended], draft_source=later)
    finished = outputs[4].finished
    assert finished is not None
    assert finished.reason is FinishReason.ERROR
    assert all(part in finished.message for part in ("99", "the moon is full"))
    assert finished.num_tokens_by_source == {DraftSource.TARGET: 5}
    assert finished.num_cached_tokens == 16
    assert (outputs[5].token_ids, outputs[5].draft_source) == ([8, 9], DraftSource.TARGET)
