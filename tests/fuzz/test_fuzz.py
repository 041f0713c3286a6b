"""A short part of `make fuzz`, and what it would notice."""

import json
import random
from pathlib import Path

import pytest

from tests.chaos.load.answer import Answer, Choice, Failure
from tests.chaos.load.case import Case
from tests.fuzz.check import fault_of
from tests.fuzz.draw import Drawn, Material, draw, load_material, predict
from tests.fuzz.form import Form, draw_form, long_form
from tests.fuzz.run import FuzzSettings, fuzz
from tests.stack import BUNDLED_MODEL

# An EAGLE head, as many drafts as there can be, cached prompts, and two grammars that fail.
SETTINGS = FuzzSettings(seed=9, first=8, requests=8)
MATERIAL = Material("tiny-edit", frozenset({3}), [5, 6, 7], [], has_heads=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_answers_are_the_same_with_drafts_as_without(tmp_path: Path) -> None:
    report = await fuzz(SETTINGS, tmp_path)
    assert report["faults"] == []
    assert report["requests"] == SETTINGS.requests
    assert report["accepted_tokens prediction"] > 0
    assert report["failed as undrafted"] > 0
    assert report["all_right"]


def drawn(form: Form | None = None, **fields: object) -> Drawn:
    body = {"max_tokens": 4, "prompt": "x"} | fields
    return Drawn(0, Case("text-0", "/v1/completions", body), form, "nothing", None)


def answer(*token_ids: int, text: str = "", reason: str = "stop") -> Answer:
    choice = Choice(text=text, token_ids=[*token_ids], finish_reason=reason, num_ends=1)
    return Answer({0: choice}, completion_tokens=len(token_ids))


def test_an_answer_within_all_limits_is_right() -> None:
    wanted = drawn(min_tokens=2, stop_token_ids=[9])
    assert fault_of(wanted, answer(5, 6, 9), MATERIAL) == ""
    assert fault_of(wanted, answer(5, 6, 7, 8, reason="length"), MATERIAL) == ""


@pytest.mark.parametrize(
    ("token_ids", "reason"),
    [
        ([5], "stop"),
        ([3, 6, 7], "stop"),
        ([5, 9, 7], "stop"),
        ([5, 6, 7], "length"),
        ([5, 6, 7, 8, 5], "length"),
    ],
    ids=["too short", "end too early", "stop token too early", "cut too early", "too long"],
)
def test_an_answer_outside_of_a_limit_is_wrong(token_ids: list[int], reason: str) -> None:
    wanted = drawn(min_tokens=2, stop_token_ids=[9])
    assert fault_of(wanted, answer(*token_ids, reason=reason), MATERIAL)


def test_an_answer_that_says_stop_is_of_its_form() -> None:
    whole = json.dumps({"text": "a" * 2400})
    for reason in ("stop", "length"):
        fault = fault_of(
            drawn(long_form(), max_tokens=1 if reason == "length" else 4),
            answer(5, text=whole[:-1], reason=reason),
            MATERIAL,
        )
        assert bool(fault) == (reason == "stop")
    assert fault_of(drawn(long_form()), answer(5, text=whole), MATERIAL) == ""


@pytest.mark.parametrize(
    ("message", "is_right"),
    [
        ("grammar: too many items", True),
        ("the worker was lost 5 times while it worked on this request", False),
    ],
)
def test_an_error_is_about_its_request(message: str, *, is_right: bool) -> None:
    failed = Answer(failure=Failure("error", message))
    assert (fault_of(drawn(), failed, MATERIAL) == "") == is_right


def test_a_request_is_a_function_of_its_seed_and_number() -> None:
    material = load_material(BUNDLED_MODEL, 7)
    assert draw(7, 30, material).case == draw(7, 30, material).case
    others = [draw(7, number, material).case.body for number in range(60)]
    assert len({json.dumps(body) for body in others}) == 60


def test_predictions_are_made_of_the_right_answer() -> None:
    right = answer(5, 6, text="total")
    bodies = {
        hint: predict(Drawn(0, drawn().case, None, hint, None), right, 1).body
        for hint in ("right", "tokens")
    }
    assert bodies["right"]["prediction"] == {"type": "content", "content": "total"}
    assert bodies["tokens"]["predicted_token_ids"] == [5, 6]


def test_forms_of_every_kind_are_drawn() -> None:
    rng = random.Random(1)
    kinds = {draw_form(rng).kind for _ in range(100)}
    assert kinds == {"json_object", "schema", "regex", "choice", "lark", "call"}
