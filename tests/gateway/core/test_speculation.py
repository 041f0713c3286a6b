"""What speculation was worth, of one answer and of several."""

from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.draft_source import DraftSource
from optimist_gateway.core.answer.answer import Answer
from optimist_gateway.core.answer.detokenize import Detokenizer
from optimist_gateway.core.answer.output import Finished, FinishReason, StepOutput
from optimist_gateway.core.answer.usage import (
    MAX_COUNTED,
    Speculation,
    add_speculations,
)
from tests.gateway.fake_scheduler import FakeScheduler, Script, Step
from tests.gateway.fronts.test_provenance import chunks_of

LENGTHS = st.lists(st.integers(0, MAX_COUNTED + 9), max_size=8)


def decode(token_ids: list[int]) -> str:
    return "".join(chr(token) for token in token_ids)


def played(lengths: list[int]) -> Speculation:
    """Returns what passes with as many accepted drafts were worth."""
    answer = Answer(3, Detokenizer(decode, ()), [], 0)  # type: ignore[arg-type]
    for accepted in lengths:
        answer.push(StepOutput([97] * (accepted + 1), accepted, DraftSource.NGRAM))
    answer.push(
        StepOutput([], finished=Finished(FinishReason.LENGTH, num_drafted_tokens=2 * sum(lengths)))
    )
    return answer.speculation()


@given(LENGTHS)
def test_every_pass_is_counted_once(lengths: list[int]) -> None:
    speculation = played(lengths)
    histogram = speculation.accepted_length_histogram
    assert speculation.num_passes == len(lengths) == sum(histogram)
    assert speculation.num_accepted_tokens == sum(lengths)
    assert speculation.num_drafted_tokens == 2 * sum(lengths)
    assert speculation.acceptance_rate == (0.5 if sum(lengths) else None)
    mean = (sum(lengths) + len(lengths)) / len(lengths) if lengths else None
    assert speculation.mean_accepted_length == mean
    assert len(histogram) <= MAX_COUNTED + 1
    for length, count in enumerate(histogram):
        assert count == sum(min(one, MAX_COUNTED) == length for one in lengths)


@given(LENGTHS, LENGTHS)
def test_several_answers_are_added(left: list[int], right: list[int]) -> None:
    assert add_speculations([played(left), played(right)]) == played([*left, *right])


def test_without_an_account_the_rate_is_unknown() -> None:
    unknown = Speculation(2, 5, 3, None, [0, 1, 1])
    both = add_speculations([unknown, Speculation(1, 1, 0, 4, [1])])
    assert both.num_drafted_tokens is both.acceptance_rate is None
    assert both.accepted_length_histogram == [1, 1, 1]


async def test_the_final_usage_has_it(http: httpx.AsyncClient, scheduler: FakeScheduler) -> None:
    scheduler.script = Script(
        [Step([20, 21, 22], 2), Step([23]), Step([24, 1], 1)],
        reason=scheduler_pb2.FINISH_REASON_STOP,
        num_drafted_tokens=6,
    )
    expected = {
        "num_passes": 6,
        "num_drafted_tokens": 12,
        "num_accepted_tokens": 6,
        "acceptance_rate": 0.5,
        "mean_accepted_length": 2.0,
        "accepted_length_histogram": [2, 2, 2],
    }
    body: dict[str, Any] = {"model": "tiny", "prompt": "a", "n": 2, "include_speculation": True}
    whole = await http.post("/v1/completions", json=body)
    assert whole.json()["usage"]["speculation"] == expected
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = await chunks_of(http, body | {"stream_options": options})
    assert last["usage"]["speculation"] == expected
    assert not any("speculation" in chunk["usage"] for chunk in chunks)
    del body["include_speculation"]
    assert "speculation" not in (await http.post("/v1/completions", json=body)).json()["usage"]


def test_a_stop_string_ends_the_account() -> None:
    answer = Answer(3, Detokenizer(decode, ()), ["cd"], 0)  # type: ignore[arg-type]
    answer.push(StepOutput([97, 98], 1, DraftSource.PREDICTION))
    answer.push(StepOutput([99, 100, 101, 102], 3, DraftSource.PREDICTION))
    assert answer.speculation() == Speculation(2, 4, 3, None, [0, 1, 1])
    answer.settle(Finished(FinishReason.ABORTED, num_drafted_tokens=9))
    assert answer.speculation() == Speculation(2, 4, 3, 9, [0, 1, 1])
