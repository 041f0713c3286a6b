"""Outputs of a step from their message: what fits together, and what does not."""

from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_to_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_gateway.core.answer.output import (
    FinishReason,
    StepLogprobs,
    StepOutput,
    TokenLogprobs,
)
from optimist_gateway.schedulers.messages import read_outputs


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


# Without those of new tokens.
OF_PROMPT = {
    "logprobs": floats_to_bytes([-1.0, -2.0]),
    "candidate_token_ids": to_bytes([10, 20]),
    "candidate_logprobs": floats_to_bytes([-0.5, -1.5]),
}
PROMPT = [TokenLogprobs(-1.0, [10], [-0.5]), TokenLogprobs(-2.0, [20], [-1.5])]
TOKENS = [TokenLogprobs(-3.0, [30, 31], [-2.5, -2.75])]
TOKENS += [TokenLogprobs(-4.0, [40, 41], [-3.5, -3.75])]
PLAIN = {"logprobs": floats_to_bytes([-3.0, -4.0]), "num_prompt_tokens": 0, "num_candidates": 0}
PLAIN |= {"candidate_token_ids": b"", "candidate_logprobs": b""}
PLAIN_TOKENS = [TokenLogprobs(-3.0, [], []), TokenLogprobs(-4.0, [], [])]


@pytest.mark.parametrize(
    ("fields", "token_ids", "prompt", "tokens"),
    [
        ({}, [8, 9], PROMPT, TOKENS),
        # Those of a prompt come without new tokens, or alone beside them.
        (OF_PROMPT | {"handle": 6, "num_candidates": 4}, [], PROMPT, []),
        (OF_PROMPT | {"num_candidates": 0}, [8, 9], PROMPT, []),
        # Tokens may come without candidates.
        (PLAIN, [8, 9], [], PLAIN_TOKENS),
    ],
)
def test_each_token_gets_its_own_logprobs(
    fields: dict[str, Any],
    token_ids: list[int],
    prompt: list[TokenLogprobs],
    tokens: list[TokenLogprobs],
) -> None:
    outputs = outputs_of(logprobs=[some_logprobs(**fields)])
    assert outputs[4].logprobs is None
    output = outputs[fields.get("handle", 5)]
    assert (output.token_ids, output.finished) == (token_ids, None)
    assert output.logprobs == StepLogprobs(3, prompt, tokens)


@pytest.mark.parametrize(
    ("positions", "in_prompt", "expected"), [([12], None, None), ([-1], to_bytes([7]), [7])]
)
def test_accepted_drafts_get_their_positions(
    positions: list[int], in_prompt: bytes | None, expected: list[int] | None
) -> None:
    message = scheduler_pb2.PredictionPositions(
        handle=5, positions=to_bytes(positions), prompt_positions=in_prompt or b""
    )
    outputs = outputs_of(prediction_positions=[message])
    assert outputs[5].prediction_positions == positions
    assert outputs[5].prompt_positions == expected
    assert outputs[4].prediction_positions is outputs[4].prompt_positions is None


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
        outputs_of(logprobs=[some_logprobs(**wrong)])


ABSENT = to_bytes([-1])


@pytest.mark.parametrize(
    ("positions", "in_prompt"),
    [
        *((wrong, b"") for wrong in (to_bytes([1, 2]), b"", to_bytes([-2]), b"\0")),
        *((ABSENT, wrong) for wrong in (to_bytes([1, 2]), to_bytes([-1]), b"\0")),
    ],
)
def test_positions_that_do_not_fit_are_refused(positions: bytes, in_prompt: bytes) -> None:
    message = scheduler_pb2.PredictionPositions(
        handle=5, positions=positions, prompt_positions=in_prompt
    )
    with pytest.raises(ValueError, match=r"position|buffer"):
        outputs_of(prediction_positions=[message])


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
    assert "99" in finished.message
    assert "the moon is full" in finished.message
    assert finished.num_tokens_by_source == {DraftSource.TARGET: 5}
    assert finished.num_cached_tokens == 16
    assert outputs[5].token_ids == [8, 9]
    assert outputs[5].draft_source is DraftSource.TARGET
