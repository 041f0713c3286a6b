"""Chat through the official client."""

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from tokenizers import Tokenizer as Backend

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_from_bytes
from tests.gateway.fake_scheduler import EOS, MAX_MODEL_LEN, USER, FakeScheduler, Say, tokens


async def chat(client: AsyncOpenAI, extra: dict[str, Any] | None = None, **options: Any) -> Any:
    options = {"model": "tiny", "messages": USER} | options
    return await client.chat.completions.create(**options, extra_body=extra)


async def chunks(client: AsyncOpenAI, extra: dict[str, Any] | None = None, **options: Any) -> Any:
    options = {"stream_options": {"include_usage": True}} | options
    stream = await chat(client, extra, stream=True, **options)
    return [chunk async for chunk in stream]


def text_of(chunks: list[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


async def test_a_whole_answer(client: AsyncOpenAI, say: Say, scheduler: FakeScheduler) -> None:
    token_ids = say("The quick brown fox")
    answer = await chat(client)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "tiny"
    assert answer.system_fingerprint is None
    assert answer.usage.completion_tokens_details.tokens_by_source == {"target": len(token_ids)}
    assert answer.choices[0].message.content == "The quick brown fox"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(token_ids)
    assert answer.usage.prompt_tokens == len(tokens(scheduler.adds[0].prompt_token_ids))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(token_ids)
    assert answer._request_id == answer.id == scheduler.adds[0].request_id
    assert "num_passes" not in answer.usage.model_extra


async def test_a_streamed_answer(client: AsyncOpenAI, say: Say) -> None:
    token_ids = say("The quick brown fox 東京", width=3)
    *parts, last = await chunks(client)
    assert parts[0].choices[0].delta.role == "assistant"
    assert text_of(parts) == "The quick brown fox 東京"
    assert [part.choices[0].finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].choices[0].finish_reason == "stop"
    assert all(part.usage is None for part in parts)
    assert last.choices == []
    assert last.usage.completion_tokens == len(token_ids)
    assert len({(part.id, part.created, part.object) for part in [*parts, last]}) == 1


async def test_a_stream_without_usage_has_none(client: AsyncOpenAI, say: Say) -> None:
    say("The quick")
    parts = await chunks(client, stream_options=None)
    assert text_of(parts) == "The quick"
    assert all(part.choices and part.usage is None for part in parts)


async def test_usage_in_every_chunk(client: AsyncOpenAI, say: Say) -> None:
    token_ids = say("The quick brown fox")
    options = {"include_usage": True, "continuous_usage_stats": True}
    parts = await chunks(client, stream_options=options)
    counts = [part.usage.completion_tokens for part in parts]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == len(token_ids)


async def test_the_synchronous_client(url: str, say: Say) -> None:
    say("The quick brown fox", width=2)

    def ask() -> tuple[str, str]:
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            stream = client.chat.completions.create(model="tiny", messages=USER, stream=True)
            return text_of(list(stream)), client.models.list().data[0].id

    assert await asyncio.to_thread(ask) == ("The quick brown fox", "tiny")


async def test_the_prediction_is_sent_as_tokens(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler, backend: Backend
) -> None:
    expected = "def main(argument):\n    return argument\n"
    say(expected, width=8, accepted=[8, 4])
    for content in (expected, [{"type": "text", "text": part} for part in expected.split("(")]):
        answer = await chat(client, prediction={"type": "content", "content": content})
        details = answer.usage.completion_tokens_details
        assert details.accepted_prediction_tokens == 12
        assert details.rejected_prediction_tokens == 0
        assert details.reasoning_tokens == details.audio_tokens == 0
    whole, parts = (tokens(add.predicted_token_ids) for add in scheduler.adds)
    assert whole == backend.encode(expected).ids
    assert parts == backend.encode(expected.replace("(", "")).ids


async def test_special_tokens_are_not_added_to_a_prediction_or_a_chat(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler, backend: Backend
) -> None:
    say("x")
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "He"}, {"type": "text", "text": "y"}],
        },
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Go", "name": "ann"},
    ]
    await chat(client, messages=messages)
    prompt = "<|system|>Be brief.\n<|user|>Hey\n<|assistant|>Yes?\n<|user|>Go\n<|assistant|>"
    assert backend.decode(tokens(scheduler.adds[0].prompt_token_ids)) == prompt


async def test_tokens_are_returned_if_asked_for(client: AsyncOpenAI, say: Say) -> None:
    token_ids = say("The quick brown fox", width=2, accepted=[1])
    extra = {"return_token_ids": True}
    parts = [choice for part in await chunks(client, extra) for choice in part.choices]
    pieces = [part for part in parts if "token_ids" in part.model_extra]
    assert [token for piece in pieces for token in piece.token_ids] == token_ids
    assert [piece.num_accepted_tokens for piece in pieces] == [1, *[0] * (len(pieces) - 1)]
    coloured = pieces[0].delta.content[: pieces[0].predicted_text_length]
    assert "The quick brown fox".startswith(coloured)
    assert 0 < len(coloured) < len(pieces[0].delta.content)
    answer = await chat(client, extra)
    assert answer.choices[0].token_ids == token_ids
    assert answer.choices[0].num_accepted_tokens == 1
    assert answer.choices[0].predicted_text_length == len(coloured)
    assert answer.usage.num_passes == len(pieces)


@pytest.mark.parametrize("width", [1, 2, 64])
async def test_a_stop_string_ends_text_and_request(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler, width: int
) -> None:
    say("The quick brown fox jumps over", width=width, forever=True, rejected=3)
    *parts, last = await chunks(client, {"return_token_ids": True}, stop=["own fo", "lazy"])
    assert text_of(parts) == "The quick br"
    assert parts[-1].choices[0].finish_reason == "stop"
    assert await scheduler.aborts.get() == scheduler.adds[0].handle
    answer = await chat(client, {"return_token_ids": True}, stop="own fo")
    assert answer.choices[0].message.content == "The quick br"
    # The same tokens, however many came at once.
    streamed = [t for part in parts for t in part.choices[0].model_extra.get("token_ids", [])]
    assert answer.choices[0].token_ids == streamed
    assert last.usage.completion_tokens == answer.usage.completion_tokens == len(streamed)
    assert answer.usage.completion_tokens_details.rejected_prediction_tokens == 3


async def test_reaching_max_tokens_is_a_reason(client: AsyncOpenAI, say: Say) -> None:
    say("The quick", reason=scheduler_pb2.FINISH_REASON_LENGTH)
    answer = await chat(client, max_tokens=7)
    assert answer.choices[0].finish_reason == "length"


async def test_parameters_reach_the_scheduler(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler
) -> None:
    say("x")
    await chat(
        client,
        {
            "top_k": 5,
            "min_p": 0.25,
            "repetition_penalty": 1.5,
            "stop_token_ids": [9, 8, 9],
            "min_tokens": 3,
            "num_speculative_tokens": 0,
            "priority": -2,
            "cache_salt": "tenant",
        },
        temperature=0.5,
        top_p=0.75,
        seed=-7,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"12": -100, "13": 1.5},
        max_completion_tokens=50,
    )
    add = scheduler.adds[0]
    sampling = add.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.75, 5)
    assert (sampling.min_p, sampling.seed, sampling.repetition_penalty) == (0.25, -7, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert tokens(sampling.logit_bias_token_ids) == [12, 13]
    assert floats_from_bytes(sampling.logit_bias_values).tolist() == [-100.0, 1.5]
    assert (add.max_tokens, add.min_tokens) == (50, 3)
    assert tokens(add.stop_token_ids) == [9, 8, EOS]
    assert add.HasField("max_draft_tokens")
    assert (add.max_draft_tokens, add.priority, add.cache_salt) == (0, -2, "tenant")


async def test_defaults(client: AsyncOpenAI, say: Say, scheduler: FakeScheduler) -> None:
    say("x")
    await chat(client, {"top_k": -1, "ignore_eos": True}, top_p=0, temperature=None)
    await chat(client)
    first, second = scheduler.adds
    assert (second.sampling.temperature, second.sampling.top_p) == (1.0, 1.0)
    assert second.sampling.repetition_penalty == 1.0
    assert second.max_tokens == MAX_MODEL_LEN - len(tokens(second.prompt_token_ids))
    assert tokens(second.stop_token_ids) == [EOS]
    assert first.sampling.temperature == 1.0
    assert first.sampling.top_k == 0
    assert 0 < first.sampling.top_p < 1e-5
    assert tokens(first.stop_token_ids) == []
    assert first.sampling.seed != second.sampling.seed
    assert first.handle != second.handle
    assert not second.HasField("max_draft_tokens")
    assert (second.priority, second.cache_salt) == (0, "")
