import numpy as np
import pytest

from optimist.common.v1 import sampling_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.values import Int32Array
from optimist_scheduler.workers.translate import (
    MalformedError,
    new_request,
    plan_message,
    step_result,
)
from tests.scheduler.situation import make_window

CONFIG = EngineConfig(
    vocab_size=50,
    max_model_len=64,
    num_blocks=32,
    block_size=4,
    multi_step_count=3,
    enable_prefix_caching=True,
)


def ints(*values: int) -> Int32Array:
    return np.array(values, np.int32)


def test_a_plan_says_what_the_worker_has_to_know_of_a_request() -> None:
    scheduler = Scheduler(CONFIG)
    sampling = sampling_pb2.SamplingParams(temperature=0.5, seed=7)
    new = NewRequest(
        "r1", [1, 2, 3], 9, [4, 5], [8, 6], min_tokens=2, sampling_message=sampling, cache_salt="s"
    )
    scheduler.add(new, 0.0)
    scheduler.set_window("r1", make_window(0, 0, [4, 5]))
    plan = scheduler.schedule(0.0)
    assert plan is not None
    message = worker_pb2.ExecuteRequest.FromString(plan_message(plan).SerializeToString())
    (admission,) = message.admissions
    assert (message.sequence, admission.slot, admission.request_id) == (1, 0, "r1")
    assert from_bytes(admission.token_ids).tolist() == [1, 2, 3]
    assert (admission.num_prompt_tokens, admission.max_length, admission.min_length) == (3, 12, 5)
    assert from_bytes(admission.stop_token_ids).tolist() == [6, 8]
    assert from_bytes(admission.cached_blocks).tolist() == []
    assert (admission.sampling.temperature, admission.sampling.seed) == (0.5, 7)
    (window,) = message.windows
    assert (window.slot, window.base, from_bytes(window.token_ids).tolist()) == (0, 0, [4, 5])
    assert from_bytes(message.slots).tolist() == [0]
    assert from_bytes(message.num_known_tokens).tolist() == [3]
    assert from_bytes(message.num_draft_tokens).tolist() == plan.num_draft_tokens.tolist()
    assert from_bytes(message.num_new_blocks).tolist() == [len(from_bytes(message.new_blocks))]
    assert message.num_repeats == plan.num_repeats


def test_a_length_below_which_stop_tokens_do_not_end_is_an_int32() -> None:
    scheduler = Scheduler(CONFIG)
    scheduler.add(NewRequest("r1", [1, 2, 3], 9, min_tokens=2**31 - 1), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    assert plan_message(plan).admissions[0].min_length == 12


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


def test_a_request_is_read_with_all_its_fields() -> None:
    add = scheduler_pb2.Add(
        handle=4,
        request_id="r4",
        prompt_token_ids=to_bytes([1, 2]),
        predicted_token_ids=to_bytes([3]),
        sampling=sampling_pb2.SamplingParams(temperature=0.5),
        max_tokens=9,
        stop_token_ids=to_bytes([6]),
        min_tokens=1,
        priority=-2,
        cache_salt="salt",
    )
    new = new_request(add, 8)
    columns = (new.prompt_token_ids, new.predicted_token_ids, new.stop_token_ids)
    assert [list(column) for column in columns] == [[1, 2], [3], [6]]
    assert (new.request_id, new.owner, new.handle) == ("r4", 8, 4)
    assert (new.max_tokens, new.min_tokens, new.priority) == (9, 1, -2)
    assert (new.cache_salt, new.max_draft_tokens) == ("salt", None)
    assert new.sampling == SamplingParams(temperature=0.5)
    assert new.sampling_message == add.sampling
    add.max_draft_tokens = 0
    assert new_request(add, 8).max_draft_tokens == 0


@pytest.mark.parametrize("name", ["prompt_token_ids", "predicted_token_ids", "stop_token_ids"])
def test_a_column_that_is_none_is_named(name: str) -> None:
    add = scheduler_pb2.Add()
    setattr(add, name, b"12345")
    with pytest.raises(MalformedError, match=f"^{name}: 5 bytes are no int32 column$"):
        new_request(add, 1)
