"""Plans and results are read as they are meant, and what breaks the contract names the field."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import floats_from_bytes, from_bytes, to_bytes
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import write_sampling
from optimist_worker.core.plan import (
    Admission,
    PlanError,
    PlannedRow,
    RowLogprobs,
    Sizes,
    WindowUpdate,
)
from optimist_worker.execution.codec import decode_plan, encode_result, write_plan
from optimist_worker.execution.commands import digest
from tests.worker.step import make_result

SIZES = Sizes(10, 16, max_num_seqs=4, max_model_len=160, max_num_batched_tokens=20)


SAMPLING = SamplingParams(
    temperature=0.5,
    top_k=4,
    top_p=0.75,
    min_p=0.25,
    seed=-(2**62),
    repetition_penalty=1.5,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    logit_bias={4: 1.5, 7: -100.0},
    grammar="start: /é/",
    num_logprobs=0,
    num_prompt_logprobs=2,
)


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
                predicted_token_ids=to_bytes([6, 7, 6]),
                sampling=write_sampling(SAMPLING),
            )
        ],
        windows=[
            worker_pb2.Window(
                slot=1, base=4, token_ids=to_bytes([1, 2, 3]), parents=to_bytes([-1, 0, 0])
            )
        ],
        slots=to_bytes([3, 1]),
        num_known_tokens=to_bytes([2, 1]),
        num_draft_tokens=to_bytes([0, 5]),
        num_new_blocks=to_bytes([1, 2]),
        new_blocks=to_bytes([9, 0, 4]),
        least_chance=0.25,
    )


def listed(part: Any) -> Any:
    """Returns the same with a list of tokens, which can be compared."""
    columns = {"token_ids": list(part.token_ids)}
    if isinstance(part, Admission):
        columns["predicted_token_ids"] = list(part.predicted_token_ids)
    return replace(part, **columns)


def test_plans_are_decoded_and_written_as_they_were_read() -> None:
    plan = decode_plan(request(), SIZES)
    assert (plan.sequence, plan.least_chance) == (8, 0.25)
    assert plan.released_slots == [3]
    assert [listed(each) for each in plan.admissions] == [
        Admission(3, "r", [5, 6], 1, SAMPLING, [7, 8], 90, 4, [2, 11], [6, 7, 6])
    ]
    assert [listed(each) for each in plan.windows] == [WindowUpdate(1, 4, [1, 2, 3], [-1, 0, 0])]
    assert list(plan.rows()) == [PlannedRow(3, 2, 0, [9]), PlannedRow(1, 1, 5, [0, 4])]
    assert write_plan(plan) == request()


def test_results_are_encoded() -> None:
    columns = {
        "lengths": [12, 5],
        "num_emitted_tokens": [2, 0],
        "token_ids": [7, 8],
        "num_drafted_tokens": [4, 0],
        "num_accepted_tokens": [1, 0],
        "draft_sources": [1, 0],
        "window_nodes": [5, -1],
        "accepted_nodes": [6],
        "draft_positions": [-1, 4],
    }
    scored = RowLogprobs(
        slot=3,
        first_prompt_position=4,
        num_prompt_tokens=1,
        num_prompt_candidates=2,
        num_candidates=1,
        logprobs=np.array([-1, -2, -3], np.float32),
        candidate_token_ids=np.array([5, 6, 7, 8], np.int32),
        candidate_logprobs=np.array([-0.5, -1, -1.5, -2], np.float32),
    )
    numbers = {"sequence": 8, "num_tokens": 6, "draft_ns": 78}
    result = make_result([3, 1], errors={1: "why"}, logprobs=[scored], **numbers, **columns)
    response = encode_result(result, 1234, 56)
    for name, number in {**numbers, "step_ns": 1234, "idle_ns": 56}.items():
        assert getattr(response, name) == number, name
    for name, column in {"slots": [3, 1], **columns}.items():
        assert from_bytes(getattr(response, name)).tolist() == column, name
    assert [(error.slot, error.message) for error in response.errors] == [(1, "why")]
    (row,) = response.logprobs
    assert (row.slot, row.first_prompt_position, row.num_prompt_tokens) == (3, 4, 1)
    assert (row.num_prompt_candidates, row.num_candidates) == (2, 1)
    assert floats_from_bytes(row.logprobs).tolist() == [-1, -2, -3]
    assert from_bytes(row.candidate_token_ids).tolist() == [5, 6, 7, 8]
    assert floats_from_bytes(row.candidate_logprobs).tolist() == [-0.5, -1, -1.5, -2]


def test_a_digest_shows_what_decides_and_no_more() -> None:
    column = [1, 2]
    result = make_result(column, token_ids=column, lengths=column, errors={1: "x"})
    same = digest(result)
    assert len(same) == 4
    assert digest(replace(result, draft_ns=5, errors={1: "y"})) == same
    other: dict[str, Any] = dict.fromkeys(
        ("token_ids", "lengths", "num_accepted_tokens"), np.array([1, 3], np.int32)
    )
    for name, value in {**other, "errors": {}, "sequence": 4, "num_tokens": 8}.items():
        assert digest(replace(result, **{name: value})) != same, name


MALFORMED: dict[str, list[float | bytes | list[int]]] = {
    "slots": [b"abc", [2**31 - 1, 3], b""],
    "released_slots": [[4], [2, 2]],
    "num_known_tokens": [[2**31 - 1] * 2, b"12345678901", [1]],
    "num_draft_tokens": [b""],
    "num_new_blocks": [[3], [4, -1]],
    "max_drafter_tokens": [-1],
    "least_chance": [-0.5, float("nan"), float("inf")],
    "new_blocks": [b"1"],
    "admissions.slot": [4],
    "admissions.token_ids": [b"12345"],
    "admissions.cached_blocks": [[1, 10], b"1"],
    "admissions.sampling.logit_bias_values": [b"", b"12345"],
    "windows.slot": [-1],
    "windows.base": [-1],
    "windows.token_ids": [b"1"],
    "windows.token_ids: 257 nodes": [[7] * 257],
    "windows.parents: 5 bytes": [b"12345"],
    "windows.parents: 2 of 3 nodes": [[-1, 0]],
    "windows.parents: 1 is not in -1 to 0": [[-1, 1, 0]],
    "windows.parents: 0 is not in -1 to -1": [[0, 0, 0]],
    "windows.parents: -2 is not in -1 to 1": [[-1, 0, -2]],
}
"""By what the error says."""


@pytest.mark.parametrize(
    ("message", "value"),
    [(message, value) for message in MALFORMED for value in MALFORMED[message]],
)
def test_malformed_plans_name_the_field(message: str, value: float | bytes | list[int]) -> None:
    *owners, name = message.partition(":")[0].split(".")
    plan: Any = request()
    part = plan
    for owner in owners:
        part = getattr(part, owner)
        part = part[0] if owner in ("admissions", "windows") else part
    setattr(part, name, to_bytes(value) if isinstance(value, list) else value)
    shown = name if "sampling" in message else message
    with pytest.raises(PlanError, match=shown.replace(".", r"\.")):
        decode_plan(plan, SIZES)


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
        index = data.draw(st.integers(0, len(rows) - 1))
        rows[index][data.draw(st.integers(0, 3))] = data.draw(EXTREMES | st.integers(0, 5))
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
