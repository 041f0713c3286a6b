"""Tools of /v1/responses that are no plain functions, as Codex and the SDKs send them."""

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.api.openai.responses.body import ResponsesBody
from optimist_gateway.core.request import Conversation, Function
from tests.gateway.harness import RESPONSES, Fields, Gateway

TARGET = {"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"]}
RUN: Fields = {"type": "function", "name": "run", "strict": False, "parameters": TARGET}
CLOSE: Fields = {"type": "function", "name": "close", "strict": False, "parameters": TARGET}
AGENTS: Fields = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [CLOSE]}
LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'}
PATCH: Fields = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": LARK}
SEARCH: Fields = {"type": "web_search", "external_web_access": False}
TOOLS: Any = [RUN, AGENTS, PATCH, SEARCH]
PATCHED = '*** Begin Patch\n*** Add File: "ü.txt"\n+\\hi\n*** End Patch\n'
CODEX: Fields = {
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a21ed3-3087-7933-a408-950deb9d0ae7",
    "client_metadata": {"session_id": "01a21ed3-3087-7933-a408-950deb9d0ae7"},
    "tools": TOOLS,
}
"""As Codex 0.171 sends it: webai-at-home/webai-at-home#214, ikawrakow/ik_llama.cpp#1964."""


def call(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def calls(*each: str) -> str:
    return f'{{"tool_calls": [{", ".join(each)}]}}'


def functions(**fields: Any) -> list[Function]:
    body = ResponsesBody.model_validate({"model": "tiny", "input": "x", **fields})
    prompt = body.request().prompts[0]
    assert isinstance(prompt, Conversation)
    return list(prompt.tools)


async def test_a_conversation_of_codex(gateway: Gateway) -> None:
    said = [call("run", {"target": "a"}), call("agents__close", {"target": "b"})]
    gateway.say(calls(*said, call("apply_patch", {"input": PATCHED})), width=5)
    system: Any = {"type": "message", "role": "developer", "id": "msg_0"}
    system["content"] = [{"type": "input_text", "text": "You are a coding agent."}]
    items: Any = [system, {"type": "message", "role": "user", "content": "Fix it."}]
    posted = await gateway.post(RESPONSES, **CODEX, input=items, stream=True)
    assert posted.headers["x-ignored-fields"] == "client_metadata, tools[].type=web_search"
    events = [json.loads(line[6:]) for line in posted.text.splitlines() if line[:5] == "data:"]
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    assert [adapter.validate_python(event).type for event in events]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    run, close, patch = done
    assert (run["type"], run["name"], "namespace" in run) == ("function_call", "run", False)
    assert (close["type"], close["namespace"], close["name"]) == (
        "function_call",
        "agents",
        "close",
    )
    assert [json.loads(one["arguments"]) for one in (run, close)] == [
        {"target": "a"},
        {"target": "b"},
    ]
    assert (patch["type"], patch["name"], patch["input"]) == (
        "custom_tool_call",
        "apply_patch",
        PATCHED,
    )
    inputs = [
        event for event in events if event["type"].startswith("response.custom_tool_call_input")
    ]
    assert "".join(event.get("delta", "") for event in inputs) == inputs[-1]["input"] == PATCHED
    final = events[-1]["response"]
    assert (events[-1]["type"], final["output"]) == ("response.completed", done)
    assert final["usage"]["total_tokens"] > 0
    assert [tool["type"] for tool in final["tools"]] == ["function", "namespace", "custom"]
    Response.model_validate(final)
    # The next turn.
    kinds = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
    items += done
    items += [
        {
            "type": kinds[one["type"]],
            "id": f"fco_{index}",
            "call_id": one["call_id"],
            "output": "ok",
        }
        for index, one in enumerate(done)
    ]
    gateway.say("Done.")
    answer = await gateway.answer(RESPONSES, **CODEX, input=items)
    assert answer["output"][0]["content"][0]["text"] == "Done."


async def test_a_call_of_a_custom_tool_is_cut_off(gateway: Gateway) -> None:
    for text, given in (('{"input": "a\\', "a"), ('{"inp', ""), ("", "")):
        said = '{"tool_calls": [{"name": "apply_patch", "arguments": ' + text
        gateway.say(said, reason=scheduler_pb2.FINISH_REASON_LENGTH)
        response = await gateway.respond(tools=[PATCH])
        assert response.output[0].input == given
        assert response.output[0].status == response.status == "incomplete"


HOSTED: list[Fields] = [
    {"type": "web_search_preview", "search_context_size": "low", "user_location": None},
    {"type": "of_next_year", "name": "f"},
    {"type": "namespace", "name": "none", "tools": [{"type": "of_next_year"}]},
]


@pytest.mark.parametrize("tool", HOSTED)
@pytest.mark.parametrize("others", [[], [RUN]])
async def test_tools_that_do_not_run_here(
    gateway: Gateway, tool: Fields, others: list[Fields]
) -> None:
    gateway.say("Hi")
    response = await gateway.post(RESPONSES, tools=[tool, *others], tool_choice="auto")
    assert response.status_code == 200, response.text
    kind = (
        "tools[].tools[].type=of_next_year" if "tools" in tool else f"tools[].type={tool['type']}"
    )
    assert response.headers["x-ignored-fields"] == kind
    assert len(response.json()["tools"]) == len(others) + ("tools" in tool)


RUN_CHOICE = {"type": "function", "name": "run"}
CHOICES: list[tuple[Any, list[str]]] = [
    (RUN_CHOICE, ["run"]),
    ({"type": "function", "name": "close"}, ["agents__close"]),
    ({"type": "custom", "name": "apply_patch"}, ["apply_patch"]),
    ({"type": "allowed_tools", "mode": "required",
      "tools": [RUN_CHOICE, {"type": "custom", "name": "apply_patch"}]}, ["run", "apply_patch"]),
]  # fmt: skip


@pytest.mark.parametrize(("choice", "names"), CHOICES)
def test_choices(choice: Any, names: list[str]) -> None:
    fields = {"model": "tiny", "input": "x", "tools": TOOLS, "tool_choice": choice}
    structure = ResponsesBody.model_validate(fields).request().structure
    assert structure is not None
    assert structure.tools is not None
    assert structure.tools.is_required
    assert [function.name for function in structure.tools.functions] == names


ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [RUN_CHOICE, {"type": "web_search"}]}
TWICE = [RUN, PATCH | {"name": "run"}]
WRONG: list[tuple[Fields, str]] = [
    ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": ALLOWED}, "tool_choice.tools[1].type"),
    ({"tools": TOOLS, "tool_choice": {"type": "custom", "name": "g"}}, "tool_choice"),
    ({"tools": TWICE}, "tools[1].name"),
    ({"tools": [PATCH | {"format": {"n": 2**70}}]}, "tools[0].format"),
    ({"tools": [AGENTS | {"tools": TWICE}]}, "tools[0].tools[1].name"),
    ({"tools": [AGENTS | {"tools": [CLOSE | {"parameters": []}]}]}, "tools[0].tools[0].parameters"),
    ({"tools": [{"name": "f"}]}, "tools[0].type"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
async def test_tools_that_are_wrong(gateway: Gateway, fields: Fields, param: str) -> None:
    error = await gateway.refused(RESPONSES, **fields)
    assert error["param"] == param, error
