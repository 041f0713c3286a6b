"""Items of a response and the events that build them up."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from optimist_gateway.fronts.openai.answer_parts import TokenLogprobAnswer
from optimist_gateway.fronts.openai.responses.output import ResponseOutput

LOGPROB: TokenLogprobAnswer = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_text_makes_one_message() -> None:
    output = ResponseOutput("resp_7")
    first = output.add_text("Hel", [LOGPROB])
    assert kinds(first) == ["output_item.added", "content_part.added", "output_text.delta"]
    assert first[0]["item"]["content"] == []
    assert first[0]["item"]["status"] == "in_progress"
    assert first[1]["part"]["text"] == ""
    assert kinds(output.add_text("lo", [LOGPROB])) == ["output_text.delta"]
    last = output.finish("completed")
    assert kinds(last) == ["output_text.done", "content_part.done", "output_item.done"]
    assert last[0]["text"] == "Hello"
    assert last[0]["logprobs"] == [LOGPROB, LOGPROB]
    assert output.items == [last[2]["item"]]
    assert output.items[0]["status"] == "completed"
    assert output.items[0]["content"][0]["text"] == "Hello"
    # What was sent before does not grow.
    assert first[1]["part"]["logprobs"] == []


def test_calls_are_items_of_their_own() -> None:
    output = ResponseOutput("resp_7")
    output.add_text("Let me see.")
    begun = output.add_call("look", '{"x"')
    assert kinds(begun) == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
    ]
    assert kinds(output.add_call(None, ":1}")) == ["function_call_arguments.delta"]
    second = output.add_call("stop", "")
    assert kinds(second) == [
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
    ]
    assert second[0]["arguments"] == '{"x":1}'
    output.add_call(None, "{}")
    output.finish("completed")
    assert [item["type"] for item in output.items] == ["message", "function_call", "function_call"]
    assert len({item.get("call_id") for item in output.items}) == 3
    assert [item.get("arguments") for item in output.items] == [None, '{"x":1}', "{}"]


def test_only_the_last_item_is_incomplete() -> None:
    output = ResponseOutput("resp_7")
    output.add_call("look", "{}")
    output.add_call("look", '{"x')
    output.finish("incomplete")
    assert [item["status"] for item in output.items] == ["completed", "incomplete"]


def test_an_answer_that_says_nothing_is_an_empty_message() -> None:
    output = ResponseOutput("resp_7")
    assert kinds(output.finish("completed")) == [
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert output.items[0]["content"][0]["text"] == ""


@given(
    st.lists(
        st.one_of(
            st.text(min_size=1),
            st.tuples(st.just("f"), st.text(max_size=5)),
        )
    )
)
def test_events_build_up_the_items(steps: list[str | tuple[str, str]]) -> None:
    output = ResponseOutput("resp_7")
    events = []
    for step in steps:
        if isinstance(step, str):
            events += output.add_text(step)
        else:
            events += output.add_call(*step)
    events += output.finish("completed")
    built: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.output_item.added":
            assert event["item"]["id"] not in built
            assert event["output_index"] == len(built)
            built[event["item"]["id"]] = ""
        elif event["type"].endswith(".delta"):
            built[event["item_id"]] += event["delta"]
    said = {
        item["id"]: item["arguments"]
        if item["type"] == "function_call"
        else item["content"][0]["text"]
        for item in output.items
    }
    assert built == said
    assert all(item["status"] == "completed" for item in output.items)
