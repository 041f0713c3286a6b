"""What messages say; that of requests, windows and plans is in test_random_commands.py."""

import pytest

from optimist.common.v1 import sampling_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import to_bytes
from optimist_common.sampling import SamplingParams
from optimist_common.scheduler_service.fields import MalformedError
from optimist_scheduler.workers.translate import new_request, plan_message, step_result
from tests.scheduler.client import add
from tests.scheduler.situation import NOW, Situation


def test_a_length_below_which_stop_tokens_do_not_end_is_an_int32() -> None:
    situation = Situation()
    situation.add(1, [1, 2, 3], 9, min_tokens=2**31 - 1)
    (admission,) = plan_message(situation.send()).admissions
    assert admission.min_length == 12


def test_a_request_keeps_its_salt_and_its_sampling() -> None:
    sampling = sampling_pb2.SamplingParams(temperature=0.5, seed=7)
    new = new_request(add(4, [1], sampling=sampling, cache_salt="salt").add, 8)
    assert (new.owner, new.handle, new.cache_salt) == (8, 4, "salt")
    assert new.sampling == SamplingParams(temperature=0.5, seed=7)
    assert new.sampling_message == sampling
    situation = Situation()
    situation.scheduler.add(new, NOW)
    (admission,) = plan_message(situation.send()).admissions
    assert admission.sampling == sampling


def test_the_times_of_a_result_are_read() -> None:
    message = worker_pb2.ExecuteResponse(num_tokens=5, step_ns=1_000, idle_ns=70, draft_ns=300)
    result = step_result(message)
    times = result.num_tokens, result.step_ns, result.idle_ns, result.draft_ns
    assert times == (5, 1_000, 70, 300)


def test_each_part_of_a_result_is_read() -> None:
    columns: tuple[str, ...] = ("slots", "lengths", "num_emitted_tokens", "token_ids")
    columns += ("num_drafted_tokens",)
    columns += ("num_accepted_tokens", "draft_sources", "window_nodes", "accepted_nodes")
    columns += ("draft_positions",)
    numbers: tuple[str, ...] = ("sequence", "num_tokens", "step_ns", "idle_ns", "draft_ns")
    values = {name: place for place, name in enumerate(columns + numbers)}
    message = worker_pb2.ExecuteResponse(
        errors=[worker_pb2.RowError(slot=2, message="why")],
        logprobs=[worker_pb2.RowLogprobs(slot=3, num_candidates=4)],
    )
    for name, value in values.items():
        setattr(message, name, to_bytes([value]) if name in columns else value)
    result = step_result(message)
    assert {name: getattr(result, name).tolist() for name in columns} == {
        name: [values[name]] for name in columns
    }
    assert {name: getattr(result, name) for name in numbers} == {
        name: values[name] for name in numbers
    }
    assert result.errors == {2: "why"}
    assert {slot: each.num_candidates for slot, each in result.logprobs.items()} == {3: 4}
    for name in columns:
        broken = worker_pb2.ExecuteResponse()
        setattr(broken, name, b"12345")
        with pytest.raises(ValueError, match="buffer size"):
            step_result(broken)


@pytest.mark.parametrize("name", ["prompt_token_ids", "predicted_token_ids", "stop_token_ids"])
def test_a_column_that_is_none_is_named(name: str) -> None:
    message = scheduler_pb2.Add()
    setattr(message, name, b"12345")
    with pytest.raises(MalformedError, match=f"^{name}: 5 bytes are no int32 column$"):
        new_request(message, 1)
