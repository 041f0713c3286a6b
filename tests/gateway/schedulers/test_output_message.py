"""Outputs of a step from their message: what fits together, and what does not."""

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_to_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_gateway.core.answer.output import FinishReason, StepLogprobs, TokenLogprobs
from optimist_gateway.schedulers.messages import read_outputs


def a_response(**fields: object) -> scheduler_pb2.ConnectResponse:
    """Returns one in which request 5 got two tokens, of which one was a draft."""
    response = scheduler_pb2.ConnectResponse(
        handles=to_bytes([4, 5]),
        num_tokens=to_bytes([1, 2]),
        token_ids=to_bytes([7, 8, 9]),
        num_accepted_tokens=to_bytes([0, 1]),
        draft_sources=to_bytes([0, DraftSource.PREDICTION]),
    )
    response.MergeFrom(scheduler_pb2.ConnectResponse(**fields))  # type: ignore[arg-type]
    return response


def some_logprobs(**fields: object) -> scheduler_pb2.Logprobs:
    """Returns those of two prompt tokens and of the two new tokens of request 5."""
    message = scheduler_pb2.Logprobs(
        handle=5,
        first_prompt_position=3,
        num_prompt_tokens=2,
        num_prompt_candidates=1,
        num_candidates=2,
        logprobs=floats_to_bytes([-1.0, -2.0, -3.0, -4.0]),
        candidate_token_ids=to_bytes([10, 20, 30, 31, 40, 41]),
        candidate_logprobs=floats_to_bytes([-0.5, -1.5, -2.5, -2.75, -3.5, -3.75]),
    )
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def test_each_token_gets_its_own_logprobs() -> None:
    outputs = dict(read_outputs(a_response(logprobs=[some_logprobs()])))
    assert outputs[4].logprobs is None
    assert outputs[5].logprobs == StepLogprobs(
        first_prompt_position=3,
        prompt=[TokenLogprobs(-1.0, [10], [-0.5]), TokenLogprobs(-2.0, [20], [-1.5])],
        tokens=[
            TokenLogprobs(-3.0, [30, 31], [-2.5, -2.75]),
            TokenLogprobs(-4.0, [40, 41], [-3.5, -3.75]),
        ],
    )


def test_logprobs_of_a_prompt_come_without_new_tokens() -> None:
    of_prompt = some_logprobs(
        handle=6,
        num_candidates=4,
        logprobs=floats_to_bytes([-1.0, -2.0]),
        candidate_token_ids=to_bytes([10, 20]),
        candidate_logprobs=floats_to_bytes([-0.5, -1.5]),
    )
    output = dict(read_outputs(a_response(logprobs=[of_prompt])))[6]
    assert (output.token_ids, output.finished) == ([], None)
    assert output.logprobs is not None
    assert [one.logprob for one in output.logprobs.prompt] == [-1.0, -2.0]
    assert output.logprobs.tokens == []


def test_logprobs_of_a_prompt_alone_may_stand_beside_new_tokens() -> None:
    of_prompt = some_logprobs(
        num_candidates=0,
        logprobs=floats_to_bytes([-1.0, -2.0]),
        candidate_token_ids=to_bytes([10, 20]),
        candidate_logprobs=floats_to_bytes([-0.5, -1.5]),
    )
    output = dict(read_outputs(a_response(logprobs=[of_prompt])))[5]
    assert output.token_ids == [8, 9]
    assert output.logprobs is not None
    assert output.logprobs.tokens == []


def test_tokens_may_come_without_candidates() -> None:
    plain = some_logprobs(
        num_prompt_tokens=0,
        num_candidates=0,
        logprobs=floats_to_bytes([-3.0, -4.0]),
        candidate_token_ids=b"",
        candidate_logprobs=b"",
    )
    output = dict(read_outputs(a_response(logprobs=[plain])))[5]
    assert output.logprobs is not None
    assert output.logprobs.tokens == [TokenLogprobs(-3.0, [], []), TokenLogprobs(-4.0, [], [])]


def test_accepted_drafts_get_their_positions() -> None:
    positions = scheduler_pb2.PredictionPositions(handle=5, positions=to_bytes([12]))
    outputs = dict(read_outputs(a_response(prediction_positions=[positions])))
    assert outputs[5].prediction_positions == [12]
    assert outputs[5].prompt_positions is None
    assert outputs[4].prediction_positions is None


def test_accepted_drafts_get_their_positions_in_the_prompt() -> None:
    positions = scheduler_pb2.PredictionPositions(
        handle=5, positions=to_bytes([-1]), prompt_positions=to_bytes([7])
    )
    outputs = dict(read_outputs(a_response(prediction_positions=[positions])))
    assert (outputs[5].prediction_positions, outputs[5].prompt_positions) == ([-1], [7])
    assert outputs[4].prompt_positions is None


def test_an_end_tells_how_many_drafts_were_verified() -> None:
    finished = scheduler_pb2.Finished(
        handle=5, reason=scheduler_pb2.FINISH_REASON_STOP, num_drafted_tokens=44
    )
    end = dict(read_outputs(a_response(finished=[finished])))[5].finished
    assert end is not None
    assert end.num_drafted_tokens == 44


@pytest.mark.parametrize(
    "wrong",
    [
        {"logprobs": floats_to_bytes([-1.0, -2.0, -3.0])},
        {"logprobs": floats_to_bytes([-1.0])},
        {"logprobs": b"\0\0\0"},
        {"num_prompt_tokens": -1},
        {"num_prompt_tokens": 3},
        {"num_candidates": -1},
        {"num_candidates": 1},
        {"candidate_token_ids": to_bytes([1])},
        {"candidate_logprobs": floats_to_bytes([1.0])},
    ],
)
def test_logprobs_that_do_not_fit_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"of 3|log-prob|buffer|candidates"):
        dict(read_outputs(a_response(logprobs=[some_logprobs(**wrong)])))


@pytest.mark.parametrize("positions", [to_bytes([1, 2]), b"", to_bytes([-2]), b"\0"])
def test_positions_that_do_not_fit_are_refused(positions: bytes) -> None:
    message = scheduler_pb2.PredictionPositions(handle=5, positions=positions)
    with pytest.raises(ValueError, match=r"position|buffer"):
        dict(read_outputs(a_response(prediction_positions=[message])))


@pytest.mark.parametrize("positions", [to_bytes([1, 2]), to_bytes([-1]), b"\0"])
def test_positions_in_the_prompt_that_do_not_fit_are_refused(positions: bytes) -> None:
    message = scheduler_pb2.PredictionPositions(
        handle=5, positions=to_bytes([-1]), prompt_positions=positions
    )
    with pytest.raises(ValueError, match=r"position|buffer"):
        dict(read_outputs(a_response(prediction_positions=[message])))


def test_what_only_a_later_scheduler_knows_ends_nobody_elses_request() -> None:
    later = max(DraftSource) + 2
    ended = scheduler_pb2.Finished(
        handle=4,
        reason=99,  # type: ignore[arg-type]
        message="the moon is full",
        num_tokens_by_source=to_bytes([3, *[0] * (later - 1), 2]),
        num_cached_tokens=16,
    )
    response = a_response(finished=[ended])
    response.draft_sources = to_bytes([0, later])
    outputs = dict(read_outputs(response))
    finished = outputs[4].finished
    assert finished is not None
    assert finished.reason is FinishReason.ERROR
    assert "99" in finished.message
    assert "the moon is full" in finished.message
    assert finished.num_tokens_by_source == {DraftSource.TARGET: 5}
    assert finished.num_cached_tokens == 16
    assert outputs[5].token_ids == [8, 9]
    assert outputs[5].draft_source is DraftSource.TARGET
