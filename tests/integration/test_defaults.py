"""What a user gets without settings, or with one: long drafts, cached beginnings."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from openai import OpenAI

from tests.integration.edit import MODEL, complete, connect, edits
from tests.stack import MODEL_FLAG, Services, start, start_services

BLOCK_TOKENS = 16
NO_DRAFTS = {"num_speculative_tokens": 0}


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with ExitStack() as stack:
        # Every token is the same however much of its prompt is computed at once.
        worker = ("--dtype", "float64")
        yield start_services(stack, [start(stack, "proposer", *MODEL_FLAG)], worker)


@pytest.fixture(scope="module")
def client(services: Services) -> Iterator[OpenAI]:
    with connect(services.url) as connected:
        yield connected


def answer(client: OpenAI, messages: Any, most: int, **extra: Any) -> Any:
    """Returns an answer of that many tokens, with them."""
    extra |= {"return_token_ids": True, "ignore_eos": True}
    return complete(client, messages, max_tokens=most, extra_body=extra)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_copy_takes_as_few_passes_as_the_limit_says(
    services: Services, client: OpenAI, depth: int
) -> None:
    """One pass for the prompt, whatever it drafts, and one for each 129 tokens of 300."""
    services.scheduler.restart(
        "--max-plans-in-flight", str(depth), "--num-speculative-tokens", "128"
    )
    services.gateway.wait_until_healthy()
    messages = edits(1)[0].messages()
    plain = answer(client, messages, 300, **NO_DRAFTS)
    token_ids = plain.choices[0].token_ids
    assert plain.usage.num_passes == len(token_ids) == 300
    copies = [
        answer(client, messages, 300, predicted_token_ids=token_ids, **limit)
        for limit in ({}, {"num_speculative_tokens": 128})
    ]
    assert [copy.choices[0].token_ids for copy in copies] == [token_ids] * 2
    assert max(copy.usage.num_passes for copy in copies) <= 4


def test_each_turn_of_a_conversation_finds_those_before_it(
    services: Services, client: OpenAI
) -> None:
    with_cache = converse(services, client)
    without = converse(services, client, "--enable-prefix-caching", "false")
    assert [turn.choices[0].token_ids for turn in with_cache] == [
        turn.choices[0].token_ids for turn in without
    ]
    cached, known = [count_cached(turn) for turn in with_cache], 0
    for turn, num_cached in zip(with_cache, cached, strict=True):
        # Prompt and answer of the turn before, but for what is cut where the answer ends.
        assert num_cached >= known - BLOCK_TOKENS
        known = (turn.usage.total_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert cached == sorted({*cached})
    assert [count_cached(turn) for turn in without] == [0] * len(without)


def converse(services: Services, client: OpenAI, *options: str) -> list[Any]:
    """Returns the answers of ten turns, each to the text of all before it and a new edit."""
    services.scheduler.restart(*options)
    services.gateway.wait_until_healthy()
    text, turns = "", list[Any]()
    create: Any = client.completions.create
    extra = {"return_token_ids": True}
    for edit in edits(10):
        text += f"\n{edit.instruction}\n{edit.before}\n"
        turns.append(
            create(model=MODEL, prompt=text, max_tokens=24, temperature=0.0, extra_body=extra)
        )
        text += turns[-1].choices[0].text
    return turns


def count_cached(turn: Any) -> int:
    """Returns how many tokens of a prompt were in the prefix cache."""
    return int(turn.usage.prompt_tokens_details.cached_tokens)
