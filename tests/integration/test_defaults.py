"""What a user gets without settings, or with one: long drafts, cached beginnings."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from openai import OpenAI

from tests.integration.edit import MODEL, complete, connect, edits
from tests.stack import EXACT, MODEL_FLAG, Services, start, start_services

BLOCK_TOKENS = 16


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with ExitStack() as stack:
        yield start_services(stack, [start(stack, "proposer", *MODEL_FLAG)], EXACT)


@pytest.fixture(scope="module")
def client(services: Services) -> Iterator[OpenAI]:
    with connect(services.url) as connected:
        yield connected


def answer(client: OpenAI, **extra: Any) -> Any:
    """Returns an answer of 300 tokens, with them."""
    extra |= {"return_token_ids": True, "ignore_eos": True}
    return complete(client, edits(1)[0].messages(), max_tokens=300, extra_body=extra)


@pytest.fixture(scope="module")
def copied(client: OpenAI) -> list[int]:
    """What the model says, 300 tokens."""
    plain = answer(client, num_speculative_tokens=0)
    token_ids: list[int] = plain.choices[0].token_ids
    assert plain.usage.num_passes == len(token_ids) == 300
    return token_ids


def test_a_copy_takes_as_few_passes_as_the_limit_says(
    services: Services, client: OpenAI, copied: list[int]
) -> None:
    """One pass for the prompt, whatever it drafts, and one for each 129 tokens of 300."""
    options = ("--max-plans-in-flight", "3", "--num-speculative-tokens", "128")
    # However late a proposer is on a busy machine.
    services.scheduler.restart(*options, "--proposer-wait", "always")
    services.gateway.wait_until_healthy()
    copies = [
        answer(client, predicted_token_ids=copied, **limit)
        for limit in ({}, {"num_speculative_tokens": 128})
    ]
    assert [copy.choices[0].token_ids for copy in copies] == [copied] * 2
    assert max(copy.usage.num_passes for copy in copies) <= 4


def test_each_turn_of_a_conversation_finds_those_before_it(
    services: Services, client: OpenAI
) -> None:
    with_cache = converse(services, client)
    without = converse(services, client, "--no-enable-prefix-caching")
    assert [turn.choices[0].token_ids for turn in with_cache] == [
        turn.choices[0].token_ids for turn in without
    ]
    # Blocks of the turn before, prompt and answer; nobody has fed the last token of that.
    lengths = [1, *(turn.usage.total_tokens for turn in with_cache)]
    expected = [(length - 1) // BLOCK_TOKENS * BLOCK_TOKENS for length in lengths[:-1]]
    assert [count_cached(turn) for turn in with_cache] == expected
    assert [count_cached(turn) for turn in without] == [0] * len(without)


def converse(services: Services, client: OpenAI, *options: str) -> list[Any]:
    """Returns the answers of three turns, each to all before it and some more tokens."""
    services.scheduler.restart(*options)
    services.gateway.wait_until_healthy()
    token_ids, turns = list[int](), list[Any]()
    create: Any = client.completions.create
    extra = {"return_token_ids": True, "ignore_eos": True}
    for turn in range(3):
        token_ids += range(100 + turn, 130 + turn)
        arguments: Any = {"model": MODEL, "prompt": token_ids, "max_tokens": 20}
        turns.append(create(**arguments, temperature=0.0, extra_body=extra))
        token_ids += turns[-1].choices[0].token_ids
    return turns


def count_cached(turn: Any) -> int:
    """Returns how many tokens of a prompt were in the prefix cache."""
    return int(turn.usage.prompt_tokens_details.cached_tokens)
