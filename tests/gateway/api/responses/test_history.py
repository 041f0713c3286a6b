"""What clients send back in the input of /v1/responses, and the messages that it makes."""

from typing import Any

import pytest

from optimist_gateway.api.openai.responses.body import ResponsesBody
from optimist_gateway.core.request import Conversation, Message, ToolCall
from tests.gateway.harness import RESPONSES, Fields, Gateway

USER = {"role": "user", "content": "x"}


def said(*items: Fields) -> list[Message]:
    """Returns the messages that come behind the first one, which is the user's."""
    body = ResponsesBody.model_validate({"model": "tiny", "input": [USER, *items]})
    body.take_unknown()
    prompt = body.request().prompts[0]
    assert isinstance(prompt, Conversation)
    assert prompt.messages[0] == Message("user", "x")
    return list(prompt.messages[1:])


def call(name: str, arguments: Any, call_id: str = "c") -> Message:
    return Message("assistant", "", tool_calls=(ToolCall(call_id, name, arguments),))


def result(text: str, call_id: str = "c") -> Message:
    return Message("tool", text, tool_call_id=call_id)


def answer(text: str, **fields: Any) -> Message:
    return Message("assistant", text, **fields)


FUNCTION_CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c"}
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CUSTOM = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"}
PARSED: Any = {
    "type": "output_text",
    "text": "{}",
    "annotations": [],
    "parsed": {},
    "logprobs": None,
}
STORED = {"role": "assistant", "id": "msg_1", "status": "completed", "phase": "final_answer"}
THOUGHTS: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
THOUGHT = [{"type": "reasoning_text", "text": "Hm."}]
SUMMARY = [{"type": "summary_text", "text": "It thought."}]
DEEP: Any = {}
for _ in range(120):
    DEEP = {"a": DEEP}
TEXT_PARTS = [{"type": kind, "text": kind} for kind in ("text", "input_text", "output_text")]
ITEMS: list[tuple[Fields, list[Message]]] = [
    # What .parse() and .stream() of the SDKs returned: openai/openai-python#2374, #2720.
    (STORED | {"content": [PARSED]}, [answer("{}")]),
    (FUNCTION_CALL | {"parsed_arguments": {}, "id": "fc_1"}, [call("f", "{}")]),
    (STORED | {"content": TEXT_PARTS, "type": "message"}, [answer("textinput_textoutput_text")]),
    ({"role": "developer", "content": "d", "name": "me"}, [Message("developer", "d", name="me")]),
    # Messages of chats.
    ({"role": "tool", "tool_call_id": "c", "content": "sun"}, [result("sun")]),
    ({"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}, [call("f", "{}")]),
    # A call that was cut off: vllm-project/vllm#43995.
    (FUNCTION_CALL | {"arguments": '{"a": '}, [call("f", '{"a": ')]),
    (FUNCTION_CALL | {"namespace": "agents", "async": False}, [call("agents__f", "{}")]),
    (OUTPUT | {"output": {"error": "ü"}}, [result('{"error": "ü"}')]),
    (OUTPUT | {"output": TEXT_PARTS[:2], "name": "f"}, [result("textinput_text")]),
    # Tools of Codex.
    (CUSTOM | {"status": "completed"}, [call("apply_patch", {"input": "*** Begin"})]),
    ({"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}, [result("ok")]),
    # What was thought: ggml-org/llama.cpp#18486, openai/openai-node#1791.
    (THOUGHTS, []),
    (THOUGHTS | {"content": THOUGHT}, []),
    ({"type": "item_reference", "id": "rs_1"}, []),
    # Tools that run elsewhere, and what is not stored here.
    ({"type": "mcp_call", "id": "m", "arguments": DEEP, "output": "x", "name": "f"}, []),
]  # fmt: skip


@pytest.mark.parametrize(("item", "messages"), ITEMS)
def test_items_are_taken(item: Fields, messages: list[Message]) -> None:
    assert said(item) == messages


TEXT = STORED | {"content": "I look."}
LOOK = ToolCall("c", "f", "{}")
ANSWERS: list[tuple[list[Fields], list[Message]]] = [
    (
        [THOUGHTS | {"content": THOUGHT}, TEXT, FUNCTION_CALL, OUTPUT | {"output": "sun"}],
        [answer("I look.", reasoning="Hm.", tool_calls=(LOOK,)), result("sun")],
    ),
    ([THOUGHTS | {"summary": SUMMARY}, FUNCTION_CALL],
     [answer("", reasoning="It thought.", tool_calls=(LOOK,))]),
    ([{"type": "reasoning", "content": "Hm."}, TEXT], [answer("I look.", reasoning="Hm.")]),
    ([THOUGHTS | {"content": THOUGHT}, THOUGHTS | {"content": THOUGHT}, TEXT],
     [answer("I look.", reasoning="Hm.\n\nHm.")]),
    ([THOUGHTS | {"content": THOUGHT}, USER, TEXT], [Message("user", "x"), answer("I look.")]),
    ([TEXT, THOUGHTS | {"content": THOUGHT}, FUNCTION_CALL],
     [answer("I look."), answer("", reasoning="Hm.", tool_calls=(LOOK,))]),
    ([TEXT, *[FUNCTION_CALL] * 200], [answer("I look.", tool_calls=(LOOK,) * 200)]),
]  # fmt: skip


@pytest.mark.parametrize(("items", "messages"), ANSWERS)
def test_what_one_answer_says_is_one_message(items: list[Fields], messages: list[Message]) -> None:
    assert said(*items) == messages


async def test_thoughts_alone_are_an_input(gateway: Gateway) -> None:
    gateway.say("Hi")
    await gateway.answer(RESPONSES, input=[THOUGHTS])


PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBOR"}
WRONG: list[tuple[Any, str]] = [
    ({"role": "user", "content": [PICTURE]}, "input[1].content[0].type"),
    (
        {"role": "user", "content": [{"type": "input_audio", "text": None}]},
        "input[1].content[0].type",
    ),
    (OUTPUT | {"output": [TEXT_PARTS[0], PICTURE]}, "input[1].output[1].type"),
    ({"role": "critic", "content": "x"}, "input[1].role"),
    ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, "input[1].arguments"),
    ({"type": 5}, "input[1].type"),
]


@pytest.mark.parametrize(("item", "param"), WRONG)
async def test_items_that_are_wrong(gateway: Gateway, item: Any, param: str) -> None:
    assert (await gateway.refused(RESPONSES, input=[USER, item]))["param"] == param
