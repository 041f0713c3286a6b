"""The chunk with `finish_reason` adds nothing to the answer, as OpenAI's API has it."""

from typing import Any

import pytest

from tests.gateway.api.test_chat_tools import ONE, TOOLS
from tests.gateway.harness import CHAT, COMPLETIONS, Fields, Gateway

TEXT = "def main(argument):\n    return argument + 1\n"
# vllm-project/vllm#35705: with a prediction one step may bring most of an answer and its end.
CASES: dict[str, tuple[str, str, Fields]] = {
    "chat": (CHAT, TEXT, {}),
    "chat with log-probabilities": (CHAT, TEXT, {"logprobs": True, "top_logprobs": 2}),
    "chat with sources": (CHAT, TEXT, {"include_provenance": True}),
    "chat up to a stop string": (CHAT, TEXT, {"stop": ["argument +"]}),
    "chat that ends like a call": (CHAT, 'It is {"tool_calls": [', {"tools": TOOLS}),
    "call": (CHAT, ONE, {"tools": TOOLS, "return_token_ids": True}),
    "completion": (COMPLETIONS, TEXT, {}),
    "completion after its prompt": (COMPLETIONS, TEXT, {"echo": True, "logprobs": 0}),
    "completion without text": (COMPLETIONS, "", {}),
}


def joined(choices: list[Any]) -> Any:
    """What the chunks of one choice add up to, tool calls by their arguments."""
    deltas = [choice.get("delta", {}) for choice in choices]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    text = "".join(choice.get("text", "") for choice in choices)
    return text + "".join(delta.get("content") or "" for delta in deltas), arguments


def of_whole(choice: Any) -> Any:
    message = choice.get("message", {})
    calls = message.get("tool_calls") or []
    arguments = "".join(call["function"]["arguments"] for call in calls)
    return choice.get("text", "") + (message.get("content") or ""), arguments


def details(*choices: Any) -> Any:
    """The tokens, the sources of all text, and how many log-probabilities there are."""
    token_ids = [token for choice in choices for token in choice.get("token_ids", [])]
    segments = [part for choice in choices for part in choice.get("provenance", [])]
    given = [choice["logprobs"] or {} for choice in choices]
    num_logprobs = sum(len(one.get("content", one.get("tokens", []))) for one in given)
    return token_ids, "".join(part["text"] for part in segments), num_logprobs


@pytest.mark.parametrize("width", [1, 100], ids=lambda width: f"{width} tokens a step")
@pytest.mark.parametrize(("path", "text", "fields"), CASES.values(), ids=CASES)
async def test_the_reason_comes_alone(
    gateway: Gateway, path: str, text: str, fields: Fields, width: int
) -> None:
    gateway.say(text, width=width, accepted=[width - 1])
    fields = {"max_tokens": 99, "seed": 1} | fields
    whole = await gateway.answer(path, **fields)
    chunks = await gateway.chunks(path, **fields)
    for one in whole["choices"]:
        own = [choice for chunk in chunks for choice in chunk["choices"]]
        *said, last = [choice for choice in own if choice["index"] == one["index"]]
        assert last["finish_reason"] == one["finish_reason"]
        assert last.get("delta", last.get("text")) in ({}, "")
        assert all(choice["finish_reason"] is None for choice in said)
        assert joined(said) == of_whole(one)
        assert details(*said, last) == details(one)
    if "stream_options" in fields:
        assert all(chunk["usage"] is not None for chunk in chunks)
