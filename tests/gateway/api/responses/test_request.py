"""Requests of /v1/responses, and the items of responses with the events that build them up."""

from copy import deepcopy
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from optimist_gateway.api.openai.answer_parts import Json
from optimist_gateway.api.openai.responses.body import ResponsesBody
from optimist_gateway.api.openai.responses.output import ResponseOutput
from optimist_gateway.api.openai.responses.tools import CustomTool, FunctionTool, Tool
from optimist_gateway.core.request import Conversation, Request


def request(**fields: Any) -> Request:
    return ResponsesBody.model_validate({"model": "tiny", **fields}).request()


def conversation(**fields: Any) -> Conversation:
    prompt = request(**fields).prompts[0]
    assert isinstance(prompt, Conversation)
    return prompt


ON = {"enable_thinking": True, "thinking": True}
OFF = dict.fromkeys(ON, False)


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        # BerriAI/litellm's and the AI SDK's efforts.
        ({"reasoning": {"effort": "xhigh", "summary": None}}, ON | {"reasoning_effort": "xhigh"}),
        ({"reasoning": {"effort": "none", "summary": "detailed"}}, OFF),
        ({"reasoning": {"summary": "auto"}, "chat_template_kwargs": {"a": 1}}, {"a": 1}),
    ],
)
def test_how_much_to_think(fields: Any, values: Any) -> None:
    assert conversation(input="x", **fields).template_kwargs == values


LOGPROB: Json = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
TEXT_END = ["output_text.done", "content_part.done", "output_item.done"]
CALL_END = ["function_call_arguments.done", "output_item.done"]
CUSTOM_END = ["custom_tool_call_input.done", "output_item.done"]
KINDS = {
    "message": (["output_item.added", "content_part.added"], "output_text.delta", TEXT_END),
    "function_call": (["output_item.added"], "function_call_arguments.delta", CALL_END),
    "custom_tool_call": (["output_item.added"], "custom_tool_call_input.delta", CUSTOM_END),
}
"""Of each type of item: the first events, those between, and the last ones."""
STEPS = st.tuples(
    st.sampled_from(["text", "call", "custom", "more of a call"]), st.text(min_size=1)
)


@given(st.lists(STEPS), st.sampled_from(["completed", "incomplete"]))
@example([], "completed")
def test_events_build_up_the_items(
    steps: list[tuple[str, str]], status: Literal["completed", "incomplete"]
) -> None:
    bodies: Any = {
        "f": FunctionTool(name="f", type="function"),
        "c": CustomTool(name="c", type="custom"),
    }
    tools = {name: Tool((), "n", body, body.function_at(0)) for name, body in bodies.items()}
    output = ResponseOutput("resp_7", tools)
    events: list[Any] = []
    sent: list[Any] = []
    kind, num_items = "message", 0
    for step, text in steps:
        if step == "text":
            num_items += not output.has_open_message
            new = output.add_text(text, [LOGPROB])
        else:
            is_new = step != "more of a call" or kind == "message"
            name = "c" if step == "custom" else "f"
            new = output.add_call(name if is_new else None, text)
            num_items += is_new
        kind = "message" if step == "text" else "call"
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
        given = "arguments" if item["type"] == "function_call" else "input"
        assert begun[given] == ""
        assert item[given] == done[given] == whole
    assert events[-1]["item"] == item
