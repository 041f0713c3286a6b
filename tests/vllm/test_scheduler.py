"""The scheduler in vLLM drafts from predictions and keeps its own account."""

import logging
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.v1.engine.core import EngineCore
from vllm.v1.structured_output.request import StructuredOutputRequest

from optimist_vllm.core.payload import PAYLOAD, Payload, Report
from optimist_vllm.core.width import MAX_DRAFTS
from tests.vllm.engine import Engine, tokens

CODE = "def area(width, height):\n    check(width, height)\n    return width * height\n\n" * 3
RENAMED = CODE.replace("width", "breadth")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


def payload(*texts: str, key: int = 0) -> Payload:
    return Payload.of(key, [tokens(text) for text in texts])


def last_report(engine: Engine, request_id: str) -> Report:
    return Report(*engine.reports[request_id][-1])


def test_a_prediction_saves_passes_and_is_counted(engine: Engine) -> None:
    engine.add("plain", RENAMED, prompt=tokens("?"))
    num_plain = engine.run()
    engine.add("predicted", RENAMED, prompt=tokens("?"), extra_args={PAYLOAD: payload(CODE, key=5)})
    num_predicted = engine.run()
    assert engine.text("plain") == engine.text("predicted") == RENAMED
    assert num_predicted < num_plain / 2
    report = last_report(engine, "predicted")
    assert report.key == 5
    assert len(RENAMED) * 0.6 < report.num_accepted < len(RENAMED)
    assert 0 < report.num_rejected < len(CODE) - report.num_accepted + 20


def test_the_prompt_and_a_text_in_extra_args_are_followed_too(engine: Engine) -> None:
    engine.add("1", CODE, prompt=tokens(f"Repeat:\n```\n{CODE}```\n"))
    assert engine.run() < len(CODE) / 4
    # What the prompt holds was not predicted.
    assert last_report(engine, "1").num_accepted == 0
    engine.add("2", CODE, extra_args={"prediction": CODE})
    assert engine.run() < len(CODE) / 4
    assert engine.text("1") == engine.text("2") == CODE
    assert last_report(engine, "2").key is None
    assert last_report(engine, "2").num_accepted > len(CODE) / 2


def test_a_request_goes_on_with_its_follower_where_it_was(engine: Engine) -> None:
    half = len(CODE) // 2
    going_on = replace(payload(CODE), num_delivered=half)
    prompt = tokens("?") + tokens(CODE[:half])
    engine.add("1", CODE[half:], prompt=prompt, extra_args={PAYLOAD: going_on})
    num_passes = engine.run()
    assert engine.text("1") == CODE[half:]
    assert num_passes < 8
    positions = [
        position for report in engine.reports["1"] for position in Report(*report).positions
    ]
    assert positions[0] >= half - 1
    assert positions == sorted(positions)


def test_a_request_may_bound_its_drafts(engine: Engine) -> None:
    for name, most in (("1", 0), ("2", 3)):
        bounded = replace(payload(CODE), max_drafts=most)
        engine.add(name, CODE, prompt=tokens("?"), extra_args={PAYLOAD: bounded})
        engine.run()
        assert engine.text(name) == CODE
        assert max(len(drafts.get(name, ())) for drafts in engine.drafts) == most


def test_the_grammar_of_a_request_that_goes_on_takes_its_output_once_it_is_compiled(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    def begin(request_id: str, grammar: Any) -> StructuredOutputRequest:
        structured = StructuredOutputRequest(grammar)
        going_on = {PAYLOAD: replace(payload(), num_delivered=2)}
        prompt = tokens("?{}")
        engine.add(request_id, CODE, prompt, extra_args=going_on, structured=structured)
        engine.step()
        return structured

    for request_id, accepts in (("1", True), ("2", False)):
        grammar = Mock()
        grammar.accept_tokens.return_value = accepts
        structured = begin(request_id, grammar)
        assert not grammar.accept_tokens.called
        structured.is_grammar_ready = True
        engine.step()
        engine.step()
        grammar.accept_tokens.assert_called_once_with(request_id, tokens("{}"))
    assert "request 2: its output so far breaks its grammar" in caplog.text
    # One whose grammar is wrong, and one that was aborted meanwhile.
    begin("3", ValueError("no grammar")).is_grammar_ready = True
    engine.step()
    begin("4", grammar)
    del engine.scheduler.requests["4"]
    engine.step()
    assert grammar.accept_tokens.call_count == 1


def test_the_token_after_the_drafts_may_end_a_text_that_is_long_enough(engine: Engine) -> None:
    request = engine.add("1", CODE, extra_args={PAYLOAD: payload(CODE)})
    request.sampling_params.min_tokens = 100
    num_passes = 0
    while engine.scheduler.requests:
        num_output = request.num_output_tokens
        engine.step()
        num_passes += 1
        assert num_output >= 100 or num_output + len(engine.drafts[-1].get("1", ())) < 100
    assert num_passes < len(CODE) / 4


def test_predictions_go_no_further_than_the_scheduler(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    extra_args = {"other": 1, PAYLOAD: payload("secret text")}
    request = engine.add("1", "secret text", extra_args=extra_args)
    assert request.sampling_params.extra_args == {"other": 1}
    engine.step()
    output = engine.scheduler.schedule()
    drafts = output.scheduled_spec_decode_tokens["1"]
    assert list(drafts) == tokens("ecret text")[: len(drafts)]
    # What vLLM's dump of a crash prints of what it finds in a pass.
    assert drafts.anon_repr() == f"<{len(drafts)} drafts>"
    assert not isinstance(drafts, list | tuple | dict | set)
    assert "secret" not in caplog.text


def test_what_is_no_prediction_leaves_the_request_alone(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.add("1", "a" * 50, extra_args={"prediction": {"type": "secret"}})
    assert engine.run() == 51
    assert "request 1 is not followed: prediction: must be" in caplog.text
    assert "secret" not in caplog.text


def test_a_fault_of_the_aligner_costs_one_request_its_drafts(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.add("1", CODE, extra_args={PAYLOAD: payload(CODE)})
    engine.add("2", CODE, extra_args={PAYLOAD: payload(CODE)})
    engine.step()
    followed: Any = engine.scheduler._entries["1"].followed
    followed.find_path = Mock(side_effect=ZeroDivisionError)
    engine.run()
    assert engine.text("1") == engine.text("2") == CODE
    assert "request 1 is not followed any more" in caplog.text
    assert not any("1" in each for each in engine.drafts[2:])


def test_several_choices_share_what_was_read(engine: Engine) -> None:
    for request_id in ("0_1", "1_1"):
        engine.add(request_id, CODE, extra_args={PAYLOAD: payload(CODE)})
    engine.add("other", CODE, extra_args={PAYLOAD: payload(CODE + "#")})
    entries = engine.scheduler._entries
    first, second, other = (entries[each].prepared.result().reference for each in entries)
    assert first is second
    assert first is not other


def test_grammars_cut_drafts(engine: Engine) -> None:
    engine.grammar.forbidden = {ord("\n")}
    engine.add("1", CODE, extra_args={PAYLOAD: payload(CODE)})
    engine.run()
    assert engine.text("1") == CODE
    assert all(ord("\n") not in each.get("1", ()) for each in engine.drafts)


def test_workers_are_asked_for_drafts_with_other_schedulers_alone(engine: Engine) -> None:
    workers, other = Mock(), Mock()
    EngineCore(engine.scheduler, workers).post_step(model_executed=True)
    assert not workers.method_calls
    EngineCore(other, workers).post_step(model_executed=True)
    other.update_draft_token_ids.assert_called_once_with(workers.take_draft_token_ids())


TEXTS = st.text("ab\n(x", max_size=80)
REQUESTS = st.lists(
    st.tuples(TEXTS, TEXTS, TEXTS, st.integers(1, 100), st.integers(0, 6)), min_size=1, max_size=8
)


def disturb(engine: Engine, choice: int, request_id: str) -> bool:
    """Does something to a request that happens in vLLM; returns whether it was aborted."""
    if choice == 1:
        # As when it is preempted.
        engine.scheduler.requests[request_id].spec_token_ids = []
    elif choice == 0:
        del engine.scheduler.requests[request_id]
    return choice == 0


def check_drafts(engine: Engine) -> None:
    for drafts in engine.drafts:
        assert all(len(each) <= 16 for each in drafts.values())
        assert sum(map(len, drafts.values())) <= MAX_DRAFTS


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REQUESTS, st.data())
def test_whatever_is_predicted_the_output_is_the_models(
    monkeypatch: pytest.MonkeyPatch,
    requests: list[tuple[str, str, str, int, int]],
    data: st.DataObject,
) -> None:
    engine = Engine(monkeypatch, num_drafts=16)
    aborted = set()
    while len(engine.drafts) < 7 or engine.scheduler.requests:
        for index, (truth, prompt, prediction, max_tokens, begins) in enumerate(requests):
            if begins == len(engine.drafts):
                extra = {PAYLOAD: payload(prediction)} if prediction else {}
                engine.add(str(index), truth, tokens(prompt), max_tokens, extra)
        aborted |= {
            request_id
            for request_id in list(engine.scheduler.requests)
            if disturb(engine, data.draw(st.integers(0, 30)), request_id)
        }
        engine.step()
    for index, (truth, _, prediction, max_tokens, _) in enumerate(requests):
        request_id = str(index)
        output = [*tokens(truth), 0][:max_tokens]
        if request_id in aborted:
            output = output[: len(engine.outputs[request_id])]
        assert engine.outputs[request_id] == output
        for report in engine.reports[request_id]:
            assert 0 <= Report(*report).num_rejected <= len(prediction)
            assert 0 <= Report(*report).num_accepted <= len(output)
    check_drafts(engine)
    assert set(engine.scheduler._entries) <= aborted
    engine.add("last", "")
    assert set(engine.scheduler._entries) == {"last"}
