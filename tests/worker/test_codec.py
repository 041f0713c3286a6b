from collections.abc import Callable

import pytest

from optimist.common.v1 import sampling_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import floats_to_bytes, from_bytes, to_bytes
from optimist_worker.codec import Limits, decode_plan, encode_result
from optimist_worker.core.plan import PlanError, PlannedRow, RowResult, StepResult

LIMITS = Limits(num_blocks=10, max_num_seqs=4, max_num_batched_tokens=20)


def request() -> worker_pb2.ExecuteRequest:
    return worker_pb2.ExecuteRequest(
        sequence=8,
        released_slots=to_bytes([3]),
        admissions=[
            worker_pb2.Admission(
                slot=3,
                request_id="r",
                token_ids=to_bytes([5, 6]),
                num_prompt_tokens=1,
                sampling=sampling_pb2.SamplingParams(
                    temperature=0.5,
                    seed=-3,
                    logit_bias_token_ids=to_bytes([7]),
                    logit_bias_values=floats_to_bytes([1.5]),
                ),
            )
        ],
        windows=[worker_pb2.Window(slot=1, base=4, token_ids=to_bytes([1, 2]))],
        slots=to_bytes([3, 1]),
        num_known_tokens=to_bytes([2, 1]),
        num_draft_tokens=to_bytes([0, 5]),
        num_new_blocks=to_bytes([1, 2]),
        new_blocks=to_bytes([9, 0, 4]),
    )


def test_plans_are_decoded() -> None:
    plan = decode_plan(request(), LIMITS)
    assert plan.sequence == 8
    assert plan.released_slots == [3]
    (admission,) = plan.admissions
    assert (admission.slot, admission.request_id, admission.token_ids) == (3, "r", [5, 6])
    assert admission.num_prompt_tokens == 1
    assert (admission.sampling.temperature, admission.sampling.seed) == (0.5, -3)
    assert (admission.sampling.top_p, admission.sampling.repetition_penalty) == (1.0, 1.0)
    assert admission.sampling.logit_bias == {7: 1.5}
    (window,) = plan.windows
    assert (window.slot, window.base, window.token_ids) == (1, 4, [1, 2])
    assert plan.rows == [PlannedRow(3, 2, 0, [9]), PlannedRow(1, 1, 5, [0, 4])]


def test_results_are_encoded() -> None:
    rows = [RowResult(3, 12, [7, 8], 4, 1), RowResult(1, 5, [], 0, 0, error="why")]
    response = encode_result(StepResult(8, rows, 6), 1234)
    assert (response.sequence, response.step_ns) == (8, 1234)
    assert from_bytes(response.slots).tolist() == [3, 1]
    assert from_bytes(response.lengths).tolist() == [12, 5]
    assert from_bytes(response.num_emitted_tokens).tolist() == [2, 0]
    assert from_bytes(response.token_ids).tolist() == [7, 8]
    assert from_bytes(response.num_drafted_tokens).tolist() == [4, 0]
    assert from_bytes(response.num_accepted_tokens).tolist() == [1, 0]
    assert [(error.slot, error.message) for error in response.errors] == [(1, "why")]


Change = Callable[[worker_pb2.ExecuteRequest], None]


def setting(field: str, value: object) -> Change:
    return lambda message: setattr(message, field, value)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("slots", setting("slots", b"abc")),
        ("slots", setting("slots", to_bytes([1, 1]))),
        ("slots", setting("slots", to_bytes([1, 4]))),
        ("slots", setting("slots", to_bytes([-1, 3]))),
        ("released_slots", setting("released_slots", to_bytes([4]))),
        ("num_known_tokens", setting("num_known_tokens", to_bytes([1]))),
        ("num_known_tokens", setting("num_known_tokens", to_bytes([1, 0]))),
        ("num_known_tokens", setting("num_known_tokens", to_bytes([20, 1]))),
        ("num_draft_tokens", setting("num_draft_tokens", to_bytes([0, -1]))),
        ("num_draft_tokens", setting("num_draft_tokens", b"")),
        ("num_new_blocks", setting("num_new_blocks", to_bytes([3]))),
        ("new_blocks", setting("new_blocks", to_bytes([1, 2]))),
        ("new_blocks", setting("new_blocks", to_bytes([1, 2, 10]))),
        ("admissions.slot", lambda m: setattr(m.admissions[0], "slot", 4)),
        ("admissions.token_ids", lambda m: setattr(m.admissions[0], "token_ids", b"12345")),
        (
            "logit_bias_values",
            lambda m: setattr(m.admissions[0].sampling, "logit_bias_values", b""),
        ),
        (
            "logit_bias_values",
            lambda m: setattr(m.admissions[0].sampling, "logit_bias_values", b"12345"),
        ),
        ("windows.slot", lambda m: setattr(m.windows[0], "slot", -1)),
        ("windows.base", lambda m: setattr(m.windows[0], "base", -1)),
        ("windows.token_ids", lambda m: setattr(m.windows[0], "token_ids", b"1")),
    ],
)
def test_malformed_plans_name_the_field(field: str, change: Change) -> None:
    message = request()
    change(message)
    with pytest.raises(PlanError, match=field.replace(".", r"\.")):
        decode_plan(message, LIMITS)
