"""What messages say; that of requests, windows and plans is in test_random_commands.py."""

import pytest

from optimist.common.v1 import sampling_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import to_bytes
from optimist_common.sampling import SamplingParams
from optimist_scheduler.workers.translate import (
    MalformedError,
    new_request,
    plan_message,
    step_result,
)
from tests.scheduler.situation import NOW, Situation


def test_a_length_below_which_stop_tokens_do_not_end_is_an_int32() -> None:
    situation = Situation()
    situation.add(1, [1, 2, 3], 9, min_tokens=2**31 - 1)
    (admission,) = plan_message(situation.send()).admissions
    assert admission.min_length == 12


def test_a_request_keeps_its_salt_and_its_sampling() -> None:
    sampling = sampling_pb2.SamplingParams(temperature=0.5, seed=7)
    add = scheduler_pb2.Add(
        handle=4,
        request_id="r4",
        prompt_token_ids=to_bytes([1]),
        max_tokens=9,
        sampling=sampling,
        cache_salt="salt",
    )
    new = new_request(add, 8)
    assert (new.owner, new.handle, new.cache_salt) == (8, 4, "salt")
    assert new.sampling == SamplingParams(temperature=0.5, seed=7)
    assert new.sampling_message == sampling
    situation = Situation()
    situation.scheduler.add(new, NOW)
    (admission,) = plan_message(situation.send()).admissions
    assert admission.sampling == sampling


def test_a_result_is_read_with_all_its_fields() -> None:
    message = worker_pb2.ExecuteResponse(
        sequence=7,
        slots=to_bytes([3, 1]),
        lengths=to_bytes([9, 5]),
        num_emitted_tokens=to_bytes([2, 0]),
        token_ids=to_bytes([4, 6]),
        num_drafted_tokens=to_bytes([3, 0]),
        num_accepted_tokens=to_bytes([1, 0]),
        errors=[worker_pb2.RowError(slot=1, message="wrong")],
        step_ns=1_000,
        repeat=2,
        num_tokens=5,
        idle_ns=70,
        draft_sources=to_bytes([4, 0]),
        draft_ns=300,
    )
    result = step_result(worker_pb2.ExecuteResponse.FromString(message.SerializeToString()))
    assert (result.sequence, result.repeat, result.num_tokens) == (7, 2, 5)
    assert (result.step_ns, result.idle_ns, result.draft_ns) == (1_000, 70, 300)
    assert result.errors == {1: "wrong"}
    columns = {
        "slots": [3, 1],
        "lengths": [9, 5],
        "num_emitted_tokens": [2, 0],
        "token_ids": [4, 6],
        "num_drafted_tokens": [3, 0],
        "num_accepted_tokens": [1, 0],
        "draft_sources": [4, 0],
    }
    assert {name: getattr(result, name).tolist() for name in columns} == columns


@pytest.mark.parametrize("name", ["prompt_token_ids", "predicted_token_ids", "stop_token_ids"])
def test_a_column_that_is_none_is_named(name: str) -> None:
    add = scheduler_pb2.Add()
    setattr(add, name, b"12345")
    with pytest.raises(MalformedError, match=f"^{name}: 5 bytes are no int32 column$"):
        new_request(add, 1)
