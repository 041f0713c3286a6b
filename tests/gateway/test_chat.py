"""Chat through the official client."""

from collections.abc import Callable

from openai import AsyncOpenAI

from tests.gateway.fake_scheduler import FakeScheduler, tokens

Say = Callable[..., list[int]]
USER = [{"role": "user", "content": "Hello"}]


async def test_a_whole_answer(client: AsyncOpenAI, say: Say, scheduler: FakeScheduler) -> None:
    token_ids = say("The quick brown fox")
    answer = await client.chat.completions.create(model="tiny", messages=USER)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.content == "The quick brown fox"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(token_ids)
    assert answer.usage.prompt_tokens == len(tokens(scheduler.adds[0].prompt_token_ids))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(token_ids)
    assert answer._request_id == answer.id


async def test_a_streamed_answer(client: AsyncOpenAI, say: Say) -> None:
    token_ids = say("The quick brown fox 東京", width=3)
    stream = await client.chat.completions.create(
        model="tiny", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == "The quick brown fox 東京"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(token_ids)
    assert len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}) == 1
