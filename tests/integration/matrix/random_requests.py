"""Random requests, every second of them wrong in one of many ways; edits beside."""

import random
from collections.abc import Sequence
from typing import Any

from optimist_training.data.edits import Edit
from tests.chaos.load.case import Case
from tests.chaos.load.client import Ending, Outcome
from tests.fuzz.check import OWN_REASONS
from tests.fuzz.draw import draw, load_material
from tests.integration.edit import MODEL, predict
from tests.stack import BUNDLED_MODEL

MAX_TOKENS = 48
"""Of an edit."""
JUNK: list[Any] = [True, -1, 2**63, -(2**70), 1e308, "x", "\x00", "ä" * 3000, [None], [[]]]
JUNK += [{"type": "text"}, [1, "a", {}], {"a": {"b": [1]}}, {"2048": 1}, [2048]]


def make_requests(count: int, seed: int) -> list[Case]:
    """Returns requests for few tokens each over HTTP; a field of every second is junk."""
    rng, material = random.Random(f"junk {seed}"), load_material(BUNDLED_MODEL, seed)
    cases: list[Case] = []
    for number in range(count):
        drawn = draw(seed, number, material).case
        body = drawn.body | {"max_tokens": rng.choice([2, 8, 24]), "min_tokens": 0}
        if number % 2:
            body[rng.choice([*body, "prediction", "stop", "tools"])] = rng.choice(JUNK)
        cases.append(Case(f"random-{number}", drawn.path, body))
    return cases


def make_edit(edit: Edit, *, with_prediction: bool) -> Case:
    """Returns a request for the first tokens of an edit."""
    body = {"model": MODEL, "messages": edit.messages(), "temperature": 0}
    body |= {"max_tokens": MAX_TOKENS, "return_token_ids": True}
    body |= predict(edit.before) if with_prediction else {}
    return Case("edit", "/v1/chat/completions", body)


def check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Checks that every answer is a complete one or an error of the request's own."""
    for one in outcomes:
        if one.ending is Ending.ANSWERED:
            choices = one.answer.choices.values()
            assert all(choice.finish_reason and choice.num_ends == 1 for choice in choices), one
            continue
        failure = one.answer.failure
        assert failure is not None, one
        assert len(one.message) < 4096
        # What a form allows is known when it is written.
        is_own = any(reason in failure.message for reason in OWN_REASONS)
        assert one.message.startswith("4") or is_own, one
