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
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, HIDDEN),
        ({"skip_special_tokens": None}, HIDDEN),
        ({"skip_special_tokens": True}, HIDDEN),
        (SHOW, SHOWN),
        (SHOW | {"ignore_eos": True}, SHOWN),
    ],
)
async def test_answers_have_them_on_demand(
    gateway: Gateway, path: str, width: int, fields: Fields, expected: str
) -> None:
    say(gateway, width)
    assert text_of(path, await gateway.answer(path, **fields)) == expected


@pytest.mark.parametrize("fields", [{}, {"include_provenance": True}, {"return_token_ids": True}])
async def test_streams_have_them_too(gateway: Gateway, fields: Fields) -> None:
    say(gateway)
    chunks = await gateway.chunks(COMPLETIONS, **fields, **SHOW)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == SHOWN
    chunks = await gateway.chunks(CHAT, **fields, **SHOW)
    shown = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(shown) == SHOWN


async def test_log_probabilities_stand_where_the_text_does(gateway: Gateway) -> None:
    say(gateway)
    for fields, text in ((SHOW, SHOWN), ({}, HIDDEN)):
        answer = await gateway.answer(COMPLETIONS, logprobs=0, **fields)
        logprobs = answer["choices"][0]["logprobs"]
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            is_special = token in ("<|pad|>", "<|end|>")
            if fields or not is_special:
                assert text.startswith(token, offset) or offset == len(text)
        assert logprobs["text_offset"][-1] == len(text)


@pytest.mark.parametrize(
    ("stop", "shown", "hidden"),
    [
        ("<|pad|>", "The", HIDDEN),
        ("pad|> q", "The<|", HIDDEN),
        ("e q", SHOWN, "Th"),
        ("<|end|> f", "The<|pad|> quick", HIDDEN),
    ],
)
async def test_stop_strings_see_what_clients_see(
    gateway: Gateway, stop: str, shown: str, hidden: str
) -> None:
    say(gateway)
    for path in (CHAT, COMPLETIONS):
        assert text_of(path, await gateway.answer(path, stop=stop, **SHOW)) == shown
        assert text_of(path, await gateway.answer(path, stop=[stop])) == hidden


async def test_only_true_and_false_are_known(gateway: Gateway) -> None:
    error = await gateway.refused(CHAT, skip_special_tokens="no")
    assert (error["param"], error["code"]) == ("skip_special_tokens", "invalid_type")
