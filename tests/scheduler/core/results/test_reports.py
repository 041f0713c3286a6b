"""Log-probabilities and positions of drafts on their way from the worker to those who asked.

That each gets its own, once and in order, is in test_random_commands.py.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import floats_from_bytes, from_bytes
from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.base.values import (
    NO_OUTPUTS,
    FinishReason,
    Logprobs,
    ReportedLogprobs,
    ReportedPositions,
)
from optimist_scheduler.core.results.check import ResultError
from optimist_scheduler.core.results.deliver import MISSING
from optimist_scheduler.gateways.delivery import split_by_owner
from optimist_scheduler.workers.translate import outputs_message, step_result
from tests.scheduler.situation import Situation, ints, run_plan

PROMPT = [7, 3, 9, 1] * 4


@pytest.mark.parametrize(
    "sampling", [SamplingParams(num_logprobs=0), SamplingParams(num_prompt_logprobs=0)]
)
@pytest.mark.parametrize("max_tokens", [1, 5])
def test_a_worker_that_tells_nothing_fails_those_who_asked(
    sampling: SamplingParams, max_tokens: int
) -> None:
    situation = Situation()
    situation.worker.is_silent = True
    situation.add(1, PROMPT, max_tokens, sampling=sampling)
    situation.add(2, PROMPT, 5)
    situation.drain()
    finished = situation.finished(1)
    assert (finished.reason, finished.message) == (FinishReason.ERROR, MISSING)
    assert situation.finished(2).reason is FinishReason.LENGTH
    assert situation.text(2) == situation.expected[2]


def floats(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


def reported(**changes: Any) -> Logprobs:
    ids, logprobs = ints(5, 6, 7, 8), floats(-1, -1.5, -2, -2.5)
    return replace(Logprobs(1, 2, 1, 2, floats(-1, -2, -3), ids, logprobs), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_prompt_tokens": -1},
        {"first_prompt_position": 2},
        {"num_candidates": 51},
        {"logprobs": floats(0)},
        {"logprobs": floats(0, 0, np.nan)},
        {"candidate_token_ids": ints(5, 6, 7)},
        {"candidate_token_ids": ints(5, 6, 7, 50)},
    ],
)
def test_logprobs_that_cannot_be_of_the_row_end_its_request(changes: dict[str, Any]) -> None:
    situation = Situation(max_num_batched_tokens=64)
    wanting = SamplingParams(num_logprobs=2, num_prompt_logprobs=1)
    for handle in (1, 2):
        situation.add(handle, [4, 5, 6], 8, sampling=wanting)
    first, second = map(int, situation.send().slots)
    result = run_plan(situation)
    with pytest.raises(ResultError, match="not in the plan"):
        situation.scheduler.settle(replace(result, logprobs={second + 1: reported()}))
    logprobs = {first: reported(**changes), second: reported()}
    situation.settle_wrong(replace(result, logprobs=logprobs), "logprobs|candidate_")
    assert list(situation.got.ended) == [1]
    assert len(situation.text(2)) == 1
    situation.finish()


def test_what_is_reported_to_several_streams_goes_to_each_its_own() -> None:
    outputs = replace(
        NO_OUTPUTS,
        logprobs=[ReportedLogprobs(1, 10, reported()), ReportedLogprobs(2, 20, reported())],
        positions=[ReportedPositions(3, 30, ints(3, -1, -5))],
    )
    parts = dict(split_by_owner(outputs))
    handles = {owner: [one.handle for one in part.logprobs] for owner, part in parts.items()}
    assert handles == {1: [10], 2: [20], 3: []}
    message = outputs_message(parts[3], {})
    assert [one.handle for one in message.prediction_positions] == [30]
    assert from_bytes(message.prediction_positions[0].positions).tolist() == [3, -1, -1]
    assert from_bytes(message.prediction_positions[0].prompt_positions).tolist() == [0, 0, 4]
    (logprobs,) = outputs_message(parts[2], {}).logprobs
    assert (logprobs.handle, logprobs.first_prompt_position) == (20, 1)
    assert (logprobs.num_prompt_tokens, logprobs.num_prompt_candidates) == (2, 1)
    assert logprobs.num_candidates == 2
    assert floats_from_bytes(logprobs.logprobs).tolist() == [-1, -2, -3]
    assert from_bytes(logprobs.candidate_token_ids).tolist() == [5, 6, 7, 8]
    assert floats_from_bytes(logprobs.candidate_logprobs).tolist() == [-1, -1.5, -2, -2.5]


def test_logprobs_that_cannot_be_read_are_an_error_of_their_row() -> None:
    one, cut = worker_pb2.RowLogprobs(slot=3), worker_pb2.RowLogprobs(slot=5, logprobs=b"123")
    failed = worker_pb2.RowError(slot=5, message="it has failed")
    read = step_result(worker_pb2.ExecuteResponse(logprobs=[one, one, cut], errors=[failed]))
    twice = "the worker's result is wrong: logprobs: they are there twice"
    assert read.errors == {3: twice, 5: "it has failed"}
