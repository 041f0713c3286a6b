import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from optimist.common.v1 import sampling_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import (
    Int32Column,
    floats_from_bytes,
    floats_to_bytes,
    from_bytes,
    to_bytes,
)
from optimist_worker.core.plan import (
    MOST_WINDOW_NODES,
    PlanError,
    PlannedRow,
    RowLogprobs,
    Sizes,
    StepResult,
)
from optimist_worker.execution.codec import decode_plan, encode_result

SIZES = Sizes(10, 16, max_num_seqs=4, max_model_len=160, max_num_batched_tokens=20)


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
                cached_blocks=to_bytes([7, 8]),
                max_length=90,
                min_length=4,
                stop_token_ids=to_bytes([2, 11]),
                sampling=sampling_pb2.SamplingParams(
                    temperature=0.5,
                    seed=-3,
                    logit_bias_token_ids=to_bytes([7]),
                    logit_bias_values=floats_to_bytes([1.5]),
                ),
            )
        ],
        windows=[
            worker_pb2.Window(
                slot=1,
                base=4,
                token_ids=to_bytes([1, 2, 3]),
                parents=to_bytes([-1, 0, 0]),
            )
        ],
        slots=to_bytes([3, 1]),
        num_known_tokens=to_bytes([2, 1]),
        num_draft_tokens=to_bytes([0, 5]),
        num_new_blocks=to_bytes([1, 2]),
        new_blocks=to_bytes([9, 0, 4]),
        num_repeats=63,
    )


def column(*numbers: int) -> Int32Column:
    return np.array(numbers, dtype=np.int32)


def test_the_codec_does_not_load_torch() -> None:
    code = "import optimist_worker.execution.codec, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plans_are_decoded() -> None:
    plan = decode_plan(request(), SIZES)
    assert plan.sequence == 8
    assert plan.released_slots == [3]
    (admission,) = plan.admissions
    assert (admission.slot, admission.request_id, admission.token_ids) == (3, "r", [5, 6])
    assert admission.num_prompt_tokens == 1
    assert (admission.sampling.temperature, admission.sampling.seed) == (0.5, -3)
    assert (admission.sampling.top_p, admission.sampling.repetition_penalty) == (1.0, 1.0)
    assert admission.sampling.logit_bias == {7: 1.5}
    assert admission.cached_blocks == [7, 8]
    assert (admission.max_length, admission.min_length) == (90, 4)
    assert admission.stop_token_ids == [2, 11]
    (window,) = plan.windows
    assert (window.slot, window.base, window.token_ids) == (1, 4, [1, 2, 3])
    assert window.parents == [-1, 0, 0]
    assert list(plan.rows()) == [PlannedRow(3, 2, 0, [9]), PlannedRow(1, 1, 5, [0, 4])]
    assert (plan.num_repeats, plan.repeat) == (63, 0)


@pytest.mark.parametrize("parents", [[], [-1, 0, 1]])
def test_a_window_may_be_a_chain(parents: list[int]) -> None:
    message = request()
    message.windows[0].parents = to_bytes(parents)
    assert decode_plan(message, SIZES).windows[0].parents == []


def test_a_window_may_have_the_most_nodes_or_none() -> None:
    message = request()
    message.windows[0].token_ids = to_bytes(range(MOST_WINDOW_NODES))
    message.windows[0].parents = to_bytes([-1] * MOST_WINDOW_NODES)
    assert len(decode_plan(message, SIZES).windows[0].parents) == MOST_WINDOW_NODES
    message.windows[0].token_ids = message.windows[0].parents = b""
    assert decode_plan(message, SIZES).windows[0].token_ids == []


def test_plans_may_be_empty() -> None:
    plan = decode_plan(worker_pb2.ExecuteRequest(sequence=3), SIZES)
    assert (plan.sequence, list(plan.rows()), plan.num_repeats) == (3, [], 0)
    assert [*plan.released_slots, *plan.admissions, *plan.windows] == []


def test_plans_may_hold_exactly_the_most_tokens() -> None:
    message = request()
    message.num_known_tokens = to_bytes([14, 1])
    assert decode_plan(message, SIZES).num_known_tokens.tolist() == [14, 1]
    message.num_known_tokens = to_bytes([15, 1])
    with pytest.raises(PlanError, match="21 together"):
        decode_plan(message, SIZES)


def test_results_are_encoded() -> None:
    result = StepResult(
        sequence=8,
        repeat=2,
        slots=column(3, 1),
        lengths=column(12, 5),
        num_emitted_tokens=column(2, 0),
        token_ids=column(7, 8),
        num_drafted_tokens=column(4, 0),
        num_accepted_tokens=column(1, 0),
        draft_sources=column(1, 0),
        window_nodes=column(5, -1),
        accepted_nodes=column(6),
        errors={1: "why"},
        num_tokens=6,
        num_live_rows=1,
        draft_ns=78,
        logprobs=[
            RowLogprobs(
                slot=3,
                first_prompt_position=4,
                num_prompt_tokens=1,
                num_prompt_candidates=2,
                num_candidates=1,
                logprobs=np.array([-1, -2, -3], np.float32),
                candidate_token_ids=column(5, 6, 7, 8),
                candidate_logprobs=np.array([-0.5, -1, -1.5, -2], np.float32),
            )
        ],
    )
    response = encode_result(result, 1234, 56)
    assert (response.sequence, response.repeat, response.num_tokens) == (8, 2, 6)
    assert (response.step_ns, response.idle_ns, response.draft_ns) == (1234, 56, 78)
    assert from_bytes(response.slots).tolist() == [3, 1]
    assert from_bytes(response.lengths).tolist() == [12, 5]
    assert from_bytes(response.num_emitted_tokens).tolist() == [2, 0]
    assert from_bytes(response.token_ids).tolist() == [7, 8]
    assert from_bytes(response.num_drafted_tokens).tolist() == [4, 0]
    assert from_bytes(response.num_accepted_tokens).tolist() == [1, 0]
    assert from_bytes(response.draft_sources).tolist() == [1, 0]
    assert from_bytes(response.window_nodes).tolist() == [5, -1]
    assert from_bytes(response.accepted_nodes).tolist() == [6]
    assert [(error.slot, error.message) for error in response.errors] == [(1, "why")]
    (row,) = response.logprobs
    assert (row.slot, row.first_prompt_position, row.num_prompt_tokens) == (3, 4, 1)
    assert (row.num_prompt_candidates, row.num_candidates) == (2, 1)
    assert floats_from_bytes(row.logprobs).tolist() == [-1, -2, -3]
    assert from_bytes(row.candidate_token_ids).tolist() == [5, 6, 7, 8]
    assert floats_from_bytes(row.candidate_logprobs).tolist() == [-0.5, -1, -1.5, -2]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("slots", b"abc", ""),
        ("slots", [1, 1], ""),
        ("slots", [1, 4], ""),
        ("slots", [-1, 3], ""),
        ("slots", [2**31 - 1, 3], ""),
        ("slots", b"", ""),
        ("released_slots", [4], ""),
        ("released_slots", [2, 2], ""),
        ("num_known_tokens", [-1, 2], ""),
        ("num_known_tokens", [2**31 - 1, 2**31 - 1], ""),
        ("num_known_tokens", b"12345678901", ""),
        ("num_known_tokens", [1], ""),
        ("num_known_tokens", [1, 0], ""),
        ("num_known_tokens", [20, 1], ""),
        ("num_draft_tokens", [0, -1], ""),
        ("num_draft_tokens", b"", ""),
        ("num_new_blocks", [3], ""),
        ("num_new_blocks", [4, -1], ""),
        ("num_repeats", -1, ""),
        ("num_repeats", 64, ""),
        ("new_blocks", [1, 2], ""),
        ("new_blocks", [1, -1, 2], ""),
        ("new_blocks", b"1", ""),
        ("new_blocks", [1, 2, 10], ""),
        ("admissions.slot", 4, ""),
        ("admissions.token_ids", b"12345", ""),
        ("admissions.cached_blocks", [1, 10], ""),
        ("admissions.cached_blocks", b"1", ""),
        ("admissions.stop_token_ids", b"1", ""),
        ("admissions.sampling.logit_bias_values", b"", ""),
        ("admissions.sampling.logit_bias_values", b"12345", ""),
        ("windows.slot", -1, ""),
        ("windows.base", -1, ""),
        ("windows.token_ids", b"1", ""),
        ("windows.token_ids", [7] * 257, ": 257 nodes"),
        ("windows.parents", b"12345", ": 5 bytes"),
        ("windows.parents", [-1, 0], ": 2 of 3 nodes"),
        ("windows.parents", [-1, 1, 0], ": 1 is not in -1 to 0"),
        ("windows.parents", [0, 0, 0], ": 0 is not in -1 to -1"),
        ("windows.parents", [-1, 0, -2], ": -2 is not in -1 to 1"),
    ],
)
def test_malformed_plans_name_the_field(
    field: str, value: int | bytes | list[int], reason: str
) -> None:
    message: Any = request()
    *owners, name = field.split(".")
    part = message
    for owner in owners:
        part = getattr(part, owner)
        part = part[0] if owner in ("admissions", "windows") else part
    setattr(part, name, to_bytes(value) if isinstance(value, list) else value)
    shown = field.split(".")[-1] if "sampling" in field else field + reason
    with pytest.raises(PlanError, match=shown.replace(".", r"\.")):
        decode_plan(message, SIZES)


EXTREMES = st.sampled_from([-(2**31), -1, 2**31 - 1])
COLUMNS = ("slots", "num_known_tokens", "num_draft_tokens", "num_new_blocks")


@given(st.data())
def test_what_is_decoded_keeps_to_the_contract(data: st.DataObject) -> None:
    rows = [
        [slot, *data.draw(st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 2)))]
        for slot in data.draw(st.lists(st.integers(0, 4), max_size=4, unique=True))
    ]
    blocks = [data.draw(st.integers(0, 10)) for _ in range(sum(row[3] for row in rows))]
    is_spoiled: bool = data.draw(st.booleans())
    if rows and is_spoiled:
        place = data.draw(st.integers(0, len(rows) - 1))
        rows[place][data.draw(st.integers(0, 3))] = data.draw(EXTREMES | st.integers(0, 5))
    slots, known, drafts, new = ([row[i] for row in rows] for i in range(4))
    fits = (
        all(0 <= slot < 4 for slot in slots)
        and len(set(slots)) == len(slots)
        and all(number >= 1 for number in known)
        and all(number >= 0 for number in drafts + new)
        and sum(known) + sum(drafts) <= 20
        and sum(new) == len(blocks)
        and all(0 <= block < 10 for block in blocks)
    )
    message = worker_pb2.ExecuteRequest(new_blocks=to_bytes(blocks))
    for name, numbers in zip(COLUMNS, (slots, known, drafts, new), strict=True):
        setattr(message, name, to_bytes(numbers))
    event(f"fits: {fits}")
    if not fits:
        with pytest.raises(PlanError):
            decode_plan(message, SIZES)
        return
    plan = decode_plan(message, SIZES)
    assert [list(row[:3]) for row in plan.rows()] == [row[:3] for row in rows]
    assert [block for row in plan.rows() for block in row.new_blocks] == blocks
