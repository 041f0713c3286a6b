"""Plans come out of their messages as they went in."""

from dataclasses import replace
from typing import Any

import numpy as np

from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import Admission, PlannedRow, Sizes, StepResult, WindowUpdate
from optimist_worker.execution.codec import decode_plan, write_plan
from optimist_worker.execution.commands import digest
from tests.worker.step import plan_rows

SAMPLING = SamplingParams(
    temperature=0.5,
    top_k=4,
    top_p=0.75,
    min_p=0.25,
    seed=2**62,
    repetition_penalty=1.5,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    logit_bias={4: 1.5, 7: -100.0},
    grammar="start: /é/",
    num_logprobs=0,
    num_prompt_logprobs=2,
)


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = plan_rows(
        7,
        [PlannedRow(2, 5, 3, [4, 9]), PlannedRow(0, 1, 0, [])],
        released_slots=[3, 1],
        admissions=[
            Admission(2, "a", [5, 6, 7], 2, SAMPLING, [1, 2], 40, 3, [2, 8]),
            Admission(3, "b", [1], 1, SamplingParams()),
        ],
        windows=[WindowUpdate(2, 4, [1, 2, 3], [-1, 0, 0]), WindowUpdate(3, 0, [9])],
        num_repeats=5,
    )
    again = decode_plan(write_plan(plan), Sizes(16, 16, 4, 256, 64))
    for name in ("slots", "num_known_tokens", "num_draft_tokens", "num_new_blocks", "new_blocks"):
        assert np.array_equal(getattr(again, name), getattr(plan, name))
    for name in ("sequence", "released_slots", "admissions", "windows", "num_repeats", "repeat"):
        assert getattr(again, name) == getattr(plan, name)


def result(**changes: Any) -> StepResult:
    column = np.array([1, 2], np.int32)
    plain = StepResult(
        sequence=3,
        repeat=0,
        slots=column,
        lengths=column,
        num_emitted_tokens=column,
        token_ids=column,
        num_drafted_tokens=column,
        num_accepted_tokens=column,
        draft_sources=column,
        errors={1: "x"},
        num_tokens=9,
        num_live_rows=2,
    )
    return replace(plain, **changes)


def test_a_digest_shows_what_decides_and_no_more() -> None:
    same = digest(result())
    assert len(same) == 4
    assert digest(result(draft_ns=5, errors={1: "y"})) == same
    other = np.array([1, 3], np.int32)
    others: list[dict[str, Any]] = [
        {"token_ids": other},
        {"lengths": other},
        {"num_accepted_tokens": other},
        {"errors": {}},
        {"sequence": 4},
        {"num_tokens": 8},
    ]
    for changes in others:
        assert digest(result(**changes)) != same
