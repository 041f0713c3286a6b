"""Requests of /v1/responses, and the items of responses with the events that build them up."""

from copy import deepcopy
from typing import Any, Literal

from hypothesis import example, given
from hypothesis import strategies as st

from optimist_gateway.core.request import (
    Conversation,
    Function,
    JsonContent,
    Message,
    Request,
    Structure,
    ToolCall,
    ToolUse,
)
from optimist_gateway.fronts.openai.answer_parts import TokenLogprobAnswer
from optimist_gateway.fronts.openai.responses.body import ResponsesBody
from optimist_gateway.fronts.openai.responses.output import ResponseOutput


def request(**fields: Any) -> Request:
    return ResponsesBody.model_validate({"model": "tiny", **fields}).request()


def conversation(**fields: Any) -> Conversation:
    prompt = request(**fields).prompts[0]
    assert isinstance(prompt, Conversation)
    return prompt


CALL = {"type": "function_call", "call_id": "a", "name": "look", "arguments": ""}
SAID = {"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}
STORED = {"type": "message", "id": "msg_1", "status": "completed"}
PARTS = [{"type": "input_text", "text": part} for part in ("ra", "in")]
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "Weather"}]},
    {"role": "assistant", "content": [SAID]} | STORED,
    CALL | {"id": "fc_1"},
    CALL | {"call_id": "b", "arguments": '{"x":1}'},
    {"type": "function_call_output", "call_id": "a", "output": "sun"},
    {"type": "function_call_output", "call_id": "b", "output": PARTS},
]
TOOL = {"type": "function", "name": "look", "parameters": {"properties": {}}, "strict": True}


def test_items_are_messages() -> None:
    calls = (ToolCall("a", "look", {}), ToolCall("b", "look", {"x": 1}))
    assert conversation(input=ITEMS).messages == [
        Message("user", "Weather"),
        Message("assistant", "I look.", tool_calls=calls),
        Message("tool", "sun", tool_call_id="a"),
        Message("tool", "rain", tool_call_id="b"),
    ]
    messages = conversation(input=[{"role": "user", "content": "x"}, CALL]).messages
    assert messages[1] == Message("assistant", "", tool_calls=(ToolCall("a", "look", {}),))


def structure_of(**fields: Any) -> tuple[Structure, ToolUse]:
    structure = request(**fields).structure
    assert structure is not None
    assert structure.tools is not None
    return structure, structure.tools


def test_tools_and_form() -> None:
    schema = {"type": "json_schema", "name": "answer", "schema": {"type": "array"}}
    fields = {"input": "x", "tools": [TOOL, TOOL | {"name": "go"}], "text": {"format": schema}}
    choice = {"type": "function", "name": "look"}
    structure, tools = structure_of(**fields, tool_choice=choice)
    assert structure.content == JsonContent({"type": "array"}, is_lenient=True)
    parameters = {"type": "object", "properties": {}}
    look = Function("look", parameters, is_strict=True, index=0)
    assert tools == ToolUse([look], is_required=True, is_parallel=False)
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [choice]}
    _, tools = structure_of(**fields, tool_choice=allowed)
    assert tools == ToolUse([look], is_required=False, is_parallel=True)
    assert len(conversation(**fields, tool_choice=allowed).tools) == 2
    assert not conversation(**fields, tool_choice="none").tools


LOGPROB: TokenLogprobAnswer = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
TEXT_END = ["output_text.done", "content_part.done", "output_item.done"]
CALL_END = ["function_call_arguments.done", "output_item.done"]
KINDS = {
    "message": (["output_item.added", "content_part.added"], "output_text.delta", TEXT_END),
    "function_call": (["output_item.added"], "function_call_arguments.delta", CALL_END),
}
"""Of each type of item: the first events, those between, and the last ones."""
STEPS = st.tuples(st.sampled_from(["text", "call", "more of a call"]), st.text(min_size=1))


@given(st.lists(STEPS), st.sampled_from(["completed", "incomplete"]))
@example([], "completed")
def test_events_build_up_the_items(
    steps: list[tuple[str, str]], status: Literal["completed", "incomplete"]
) -> None:
    output = ResponseOutput("resp_7")
    events: list[Any] = []
    sent: list[Any] = []
    kind, num_items = "", 0
    for step, text in steps:
        if step == "text":
            new = output.add_text(text, [LOGPROB])
            num_items += kind != "message"
        else:
            is_new = step == "call" or kind != "function_call"
            new = output.add_call("f" if is_new else None, text)
            num_items += is_new
        kind = "message" if step == "text" else "function_call"
        events += new
        sent += deepcopy(new)
    events += output.finish(status)
    # What was sent before does not grow.
    assert events[: len(sent)] == sent
    items = output.items
    # What says nothing is an empty message.
    assert len(items) == max(num_items, 1)
    statuses = ["completed"] * (len(items) - 1) + [status]
    assert [item["status"] for item in items] == statuses
    indexes = [event["output_index"] for event in events]
    assert indexes == sorted(indexes)
    for index, item in enumerate(items):
        require_item(item, [event for event in events if event["output_index"] == index])
    names = [item[name] for item in items for name in ("id", "call_id") if name in item]
    assert len(set(names)) == len(names)


def require_item(item: Any, events: list[Any]) -> None:
    """Compares an item with the events that built it up."""
    first, delta, last = KINDS[item["type"]]
    kinds = [event["type"].removeprefix("response.") for event in events]
    between = events[len(first) : -len(last)]
    assert kinds == [*first, *[delta] * len(between), *last]
    begun, done = events[0]["item"], events[-len(last)]
    assert (begun["status"], begun["id"]) == ("in_progress", item["id"])
    whole = "".join(event["delta"] for event in between)
    if item["type"] == "message":
        assert begun["content"] == []
        assert events[1]["part"]["text"] == ""
        assert item["content"][0]["text"] == done["text"] == whole
        assert done["logprobs"] == [LOGPROB] * len(between)
    else:
        assert begun["arguments"] == ""
        assert item["arguments"] == done["arguments"] == whole
    assert events[-1]["item"] == item
