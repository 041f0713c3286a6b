"""Completions through the official client."""

from typing import Any

import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer as Backend

from tests.gateway.fake_scheduler import FakeScheduler, Say, tokens


async def test_a_whole_answer(client: AsyncOpenAI, say: Say, scheduler: FakeScheduler) -> None:
    token_ids = say(" fox")
    answer = await client.completions.create(model="tiny", prompt="The quick brown")
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text == " fox"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(token_ids)
    assert scheduler.adds[0].max_tokens == 16


async def test_a_streamed_answer(client: AsyncOpenAI, say: Say) -> None:
    say(" fox jumps", width=2)
    stream = await client.completions.create(
        model="tiny", prompt="The quick brown", stream=True, stream_options={"include_usage": True}
    )
    *parts, last = [part async for part in stream]
    assert "".join(part.choices[0].text for part in parts) == " fox jumps"
    assert parts[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage is not None


@pytest.mark.parametrize("prompt", ["The quick", ["The quick"]])
async def test_prompts_as_text(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler, backend: Backend, prompt: Any
) -> None:
    say("x")
    await client.completions.create(model="tiny", prompt=prompt)
    assert tokens(scheduler.adds[0].prompt_token_ids) == backend.encode("The quick").ids


@pytest.mark.parametrize("prompt", [[7, 8, 9], [[7, 8, 9]]])
async def test_prompts_as_tokens(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler, prompt: Any
) -> None:
    say("x")
    await client.completions.create(model="tiny", prompt=prompt)
    assert tokens(scheduler.adds[0].prompt_token_ids) == [7, 8, 9]


async def test_a_prediction_is_taken_here_too(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler, backend: Backend
) -> None:
    say("x")
    prediction = {"type": "content", "content": "over\r\nthe lazy dog"}
    await client.completions.create(
        model="tiny", prompt="a", extra_body={"prediction": prediction}, max_tokens=99
    )
    expected = backend.encode("over\nthe lazy dog").ids
    assert tokens(scheduler.adds[0].predicted_token_ids) == expected
    assert scheduler.adds[0].max_tokens == 99
