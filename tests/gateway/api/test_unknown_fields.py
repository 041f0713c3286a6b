"""Fields that the gateway does not know are ignored and named."""

from typing import Any

import pytest

from tests.gateway.harness import CHAT, COMPLETIONS, RESPONSES, USER, Fields, Gateway

CACHED = {"cache_control": {"type": "ephemeral"}}
PART = {"type": "text", "text": "Hello"}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
CALL: Fields = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def said(**fields: Any) -> Fields:
    return {"messages": [{"role": "user", "content": "Hello"} | fields]}


def called(call: Fields, **fields: Any) -> Fields:
    answer = {"role": "assistant", "content": None, "tool_calls": [call], **fields}
    return {"messages": [*USER, answer, {"role": "tool", "tool_call_id": "c1", "content": "x"}]}


# Each with what the header names.
UNKNOWN: list[tuple[str, Fields, str]] = [
    # QuantumNous/new-api#5982, cline/cline#1387
    (
        CHAT,
        {"messages": [{"role": "user", "content": [PART | CACHED]}]},
        "messages[].content[].cache_control",
    ),
    (CHAT, said(**CACHED), "messages[].cache_control"),
    (CHAT, {"tools": [TOOL | CACHED]}, "tools[].cache_control"),
    (CHAT, {"tools": [{**TOOL, "function": FUNCTION | CACHED}]}, "tools[].function.cache_control"),
    (CHAT, {"tools": [{"type": "web_search"}, TOOL]}, "tools[].type=web_search"),
    (
        CHAT,
        {"prediction": {"type": "content", "content": "a"} | CACHED},
        "prediction.cache_control",
    ),
    (CHAT, called(CALL | {"index": 0}), "messages[].tool_calls[].index"),
    (
        CHAT,
        called(CALL | {"extra_content": {"google": {"thought_signature": "x"}}}),
        "messages[].tool_calls[].extra_content",
    ),
    (CHAT, said(id="msg_1", createdAt=5), "messages[].createdAt"),
    (CHAT, {"chat_template": "{{ x }}"}, "chat_template"),
    (CHAT, {"prompt": "a", "echo": True}, "prompt, echo"),
    (CHAT, {"stream_options": {"include": True}}, "stream_options.include"),
    (
        COMPLETIONS,
        {"use_beam_search": False, "length_penalty": 1},
        "use_beam_search, length_penalty",
    ),
    (COMPLETIONS, {"tools": []}, "tools"),
    (RESPONSES, {"client_metadata": {"a": "b"}}, "client_metadata"),
    ("/tokenize", {"prompt": "a", "mm": 1}, "mm"),
    ("/detokenize", {"tokens": [5], "mm": 1}, "mm"),
]


@pytest.mark.parametrize(("path", "fields", "named"), UNKNOWN, ids=lambda one: str(one)[:50])
async def test_they_are_ignored_and_named(
    gateway: Gateway, path: str, fields: Fields, named: str
) -> None:
    gateway.say("fine")
    response = await gateway.post(path, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["x-ignored-fields"] == named


@pytest.mark.parametrize("stop", ["", [""], ["", "END", None]])
async def test_empty_stop_strings_are_none(gateway: Gateway, stop: Any) -> None:
    gateway.say("a END b")
    answer = await gateway.answer(CHAT, **said(), stop=stop)
    text = answer["choices"][0]["message"]["content"]
    assert text == ("a " if "END" in stop else "a END b")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
async def test_they_change_nothing(gateway: Gateway, path: str) -> None:
    gateway.say("The quick brown fox")
    plain = await gateway.post(path, seed=1)
    await gateway.post(path, seed=1, surprise={"temperature": 2})
    streamed = await gateway.post(path, seed=1, stream=True, surprise=1, user="ann")
    assert streamed.headers["x-ignored-fields"] == "surprise"
    assert "x-ignored-fields" not in plain.headers
    first, *others = gateway.adds
    for add in (first, *others):
        add.handle, add.request_id, add.trace_parent = 0, "", ""
        add.ClearField("names")
    assert others == [first] * 2


async def test_names_are_bounded_and_printable(gateway: Gateway) -> None:
    gateway.say("fine")
    fields: Fields = {"a\r\nb: c\u00e4" + "x" * 200: 1}
    response = await gateway.post(CHAT, **fields)
    (name,) = response.headers["x-ignored-fields"].split(", ")
    assert name.startswith("a??b:?c?x")
    assert len(name) == 100
    fields = dict.fromkeys(map(str, range(10_000)), 1)
    response = await gateway.post(CHAT, **fields)
    assert response.headers["x-ignored-fields"] == ", ".join([*map(str, range(16)), "..."])


# anthropics/claude-code#6273: JavaScript cuts texts between the halves of a character.
HALVES: list[tuple[str, Fields]] = [
    (CHAT, said(content="a\ud83d")),
    (CHAT, said(content="\ude00 b")),
    (CHAT, said() | {"prediction": {"type": "content", "content": "a\ud83d"}}),
    (CHAT, said() | {"stop": ["\ud83d"]}),
    (CHAT, said() | {"tools": [{**TOOL, "function": FUNCTION | {"description": "\ud83d"}}]}),
    (
        CHAT,
        said()
        | {"tools": [{**TOOL, "function": {"name": "f", "parameters": {"title": "\ud83d"}}}]},
    ),
    (CHAT, called(CALL | {"function": {"name": "f", "arguments": '{"a": "\ud83d"}'}})),
    (CHAT, called(CALL | {"function": {"name": "f", "arguments": r'{"a": "\ud83d"}'}})),
    (COMPLETIONS, {"prompt": "a\ud83d"}),
    (RESPONSES, {"input": "a\ud83d", "instructions": "\ud83d"}),
    ("/tokenize", {"prompt": "a\ud83d"}),
]


@pytest.mark.parametrize(("path", "fields"), HALVES, ids=lambda one: ascii(one)[:50])
async def test_halves_of_a_character_are_replaced(
    gateway: Gateway, path: str, fields: Fields
) -> None:
    gateway.say("fine")
    await gateway.answer(path, **fields)
    if path == COMPLETIONS:
        prompt = gateway.adds[-1].prompt_token_ids
        gateway.adds.clear()
        await gateway.answer(path, prompt="a\ufffd")
        assert gateway.adds[-1].prompt_token_ids == prompt
