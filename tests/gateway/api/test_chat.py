"""Chat and completions through the official client."""

from typing import Any

import pytest

from optimist_common.columns import floats_from_bytes
from tests.gateway.fake_scheduler import EOS, tokens
from tests.gateway.harness import CHAT, COMPLETIONS, Gateway

USAGE = {"include_usage": True}


async def chunks(gateway: Gateway, extra: dict[str, Any] | None = None, **options: Any) -> Any:
    stream = await gateway.chat(extra, stream=True, **{"stream_options": USAGE} | options)
    return [chunk async for chunk in stream]


async def test_a_whole_answer(gateway: Gateway) -> None:
    token_ids = gateway.say("The quick brown fox")
    answer = await gateway.chat()
    assert (answer.object, answer.model) == ("chat.completion", "tiny")
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint is None
    usage, details = answer.usage, answer.usage.completion_tokens_details
    assert details.tokens_by_source == {"target": len(token_ids)}
    assert details.reasoning_tokens == details.audio_tokens == 0
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.role) == ("The quick brown fox", "assistant")
    assert choice.finish_reason == "stop"
    (add,) = gateway.adds
    num_prompt = len(tokens(add.prompt_token_ids))
    assert (usage.prompt_tokens, usage.completion_tokens) == (num_prompt, len(token_ids))
    assert usage.total_tokens == num_prompt + len(token_ids)
    assert answer._request_id == answer.id == add.request_id
    assert "num_passes" not in usage.model_extra


async def test_a_completion(gateway: Gateway) -> None:
    token_ids = gateway.say(" fox jumps", width=2)
    answer = await gateway.complete()
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (" fox jumps", "stop")
    assert answer.usage.completion_tokens == len(token_ids)
    assert gateway.adds[0].max_tokens == 16
    stream = await gateway.complete(stream=True, stream_options=USAGE)
    *parts, last = [part async for part in stream]
    assert "".join(part.choices[0].text for part in parts) == " fox jumps"
    assert parts[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage == answer.usage


async def test_tokens_are_returned_if_asked_for(gateway: Gateway) -> None:
    token_ids = gateway.say("The quick brown fox", width=2, accepted=[1])
    extra = {"return_token_ids": True}
    parts = [choice for part in await chunks(gateway, extra) for choice in part.choices]
    pieces = [part for part in parts if "token_ids" in part.model_extra]
    assert [token for piece in pieces for token in piece.token_ids] == token_ids
    assert [piece.num_accepted_tokens for piece in pieces] == [1, *[0] * (len(pieces) - 1)]
    coloured = pieces[0].delta.content[: pieces[0].predicted_text_length]
    assert "The quick brown fox".startswith(coloured)
    assert 0 < len(coloured) < len(pieces[0].delta.content)
    answer = await gateway.chat(extra)
    (choice,) = answer.choices
    assert (choice.token_ids, choice.num_accepted_tokens) == (token_ids, 1)
    assert choice.predicted_text_length == len(coloured)
    assert answer.usage.num_passes == len(pieces)


@pytest.mark.parametrize("width", [1, 64])
async def test_a_stop_string_ends_text_and_request(gateway: Gateway, width: int) -> None:
    gateway.say("The quick brown fox jumps over", width=width, forever=True, rejected=3)
    extra = {"return_token_ids": True}
    *chunked, last = await chunks(gateway, extra, stop=["own fo", "lazy"])
    parts = [chunk.choices[0] for chunk in chunked]
    assert "".join(part.delta.content or "" for part in parts) == "The quick br"
    assert parts[-1].finish_reason == "stop"
    assert await gateway.scheduler.aborts.get() == gateway.adds[0].handle
    answer = await gateway.chat(extra, stop="own fo")
    assert answer.choices[0].message.content == "The quick br"
    # The same tokens, however many came at once.
    streamed = [token for part in parts for token in part.model_extra.get("token_ids", [])]
    assert answer.choices[0].token_ids == streamed
    assert last.usage.completion_tokens == answer.usage.completion_tokens == len(streamed)
    assert answer.usage.completion_tokens_details.rejected_prediction_tokens == 3


async def test_parameters_reach_the_scheduler(gateway: Gateway) -> None:
    gateway.say("x")
    same: dict[str, Any] = {"temperature": 0.5, "top_p": 0.75, "top_k": 5, "min_p": 0.25}
    same |= {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.5}
    same["seed"] = -7
    options: dict[str, Any] = same | {"logit_bias": {"12": -100, "13": 1.5}}
    options |= {"stop_token_ids": [9, 8, 9], "min_tokens": 3, "num_speculative_tokens": 0}
    options |= {"cache_salt": "tenant", "priority": -2}
    await gateway.answer(CHAT, **options, max_completion_tokens=50)
    await gateway.answer(CHAT, **options, max_tokens=50)
    await gateway.answer(COMPLETIONS, **options, max_tokens=50)
    for add in gateway.adds:
        sampling = add.sampling
        assert {name: getattr(sampling, name) for name in same} == same
        assert tokens(sampling.logit_bias_token_ids) == [12, 13]
        assert floats_from_bytes(sampling.logit_bias_values).tolist() == [-100.0, 1.5]
        assert (add.max_tokens, add.min_tokens) == (50, 3)
        assert tokens(add.stop_token_ids) == [9, 8, EOS]
        assert add.HasField("max_draft_tokens")
        assert (add.max_draft_tokens, add.priority, add.cache_salt) == (0, -2, "tenant")
