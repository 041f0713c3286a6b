"""A scheduler that is slow, gone, or back; its messages, and outputs on their way to a reader."""

import gc
from asyncio import sleep
from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_to_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_gateway.core.answer.output import FinishReason, StepOutput
from optimist_gateway.schedulers.messages import read_outputs
from optimist_gateway.schedulers.requests import SchedulerUnavailableError
from tests.gateway.fake_scheduler import EOS, Script, Step
from tests.gateway.schedulers.fleet import Fleet


async def test_an_answer_goes_out_without_its_account_if_the_scheduler_is_lost() -> None:
    async with Fleet(1, 0) as fleet:
        fleet.fakes[0].script = Script([Step([7])], break_stream=True)
        stream = fleet.read()
        assert await stream.next() == [7]
        assert await stream.finish() is None


@pytest.mark.parametrize("columns", [{"handles": b"\1\0"}, {"num_tokens": b"\1\0\0\0"}])
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
        with pytest.raises(ValueError, match=r"log-prob|buffer|reshape"):
            outputs_of(logprobs=[some_logprobs(**{name: wrong})])


WRONG_POSITIONS = [(wrong,) for wrong in (to_bytes([1, 2]), to_bytes([-2]), b"\0")]
IN_PROMPT = [(to_bytes([-1]), wrong) for wrong in (to_bytes([1, 2]), to_bytes([-1]))]


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
