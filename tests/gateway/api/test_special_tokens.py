"""`skip_special_tokens`, vLLM's name: whether special tokens are part of the text."""

from typing import Any

import pytest

from tests.gateway.fake_scheduler import EOS, Script, Step
from tests.gateway.harness import CHAT, COMPLETIONS, RESPONSES, Fields, Gateway

HIDDEN, SHOWN = "The quick fox", "The<|pad|> quick<|end|> fox"
SHOW = {"skip_special_tokens": False}


def say(gateway: Gateway, width: int = 1) -> list[int]:
    """Lets the scheduler answer with special tokens within the text, and one at its end."""
    token_ids = [*gateway.backend.encode(SHOWN).ids, EOS]
    steps = [token_ids[start : start + width] for start in range(0, len(token_ids), width)]
    gateway.scheduler.script = Script([Step(step) for step in steps])
    return token_ids


def text_of(path: str, answer: Any) -> str:
    if path == RESPONSES:
        return str(answer["output"][0]["content"][0]["text"])
    choice = answer["choices"][0]
    return str(choice["message"]["content"] if path == CHAT else choice["text"])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize(
    ("fields", "expected"), [({}, HIDDEN), (SHOW, SHOWN), (SHOW | {"ignore_eos": True}, SHOWN)]
)
async def test_answers_have_them_on_demand(
    gateway: Gateway, path: str, fields: Fields, expected: str
) -> None:
    say(gateway, 3)
    assert text_of(path, await gateway.answer(path, **fields)) == expected


@pytest.mark.parametrize(
    ("stop", "shown", "hidden"),
    [("pad|> q", "The<|", HIDDEN), ("<|end|> f", "The<|pad|> quick", HIDDEN)],
)
async def test_stop_strings_see_what_clients_see(
    gateway: Gateway, stop: str, shown: str, hidden: str
) -> None:
    say(gateway)
    for path in (CHAT, COMPLETIONS):
        assert text_of(path, await gateway.answer(path, stop=stop, **SHOW)) == shown
        assert text_of(path, await gateway.answer(path, stop=[stop])) == hidden
