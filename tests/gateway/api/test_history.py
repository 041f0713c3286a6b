"""What clients replay of a conversation, and what they tell its chat template besides."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import BaseModel
from tokenizers import Tokenizer as Backend

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.text.tokenizer import load_tokenizer
from tests.gateway.conftest import save_model
from tests.gateway.fake_scheduler import tokens
from tests.gateway.harness import CHAT, USER, Fields, Gateway, starting


def prompt_of(gateway: Gateway) -> str:
    """Returns the prompt of the last request."""
    return gateway.backend.decode(tokens(gateway.adds[-1].prompt_token_ids))


def answer(content: Any = "Hi", **fields: Any) -> Fields:
    return {"role": "assistant", "content": content, **fields}


def call(arguments: Any = "{}", name: str = "f", **fields: Any) -> Fields:
    function = {"name": name, "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function, **fields}


def calling(*calls: Fields, **fields: Any) -> Fields:
    return answer(**{"content": None, "tool_calls": list(calls)} | fields)


def result(content: Any = "sun", **fields: Any) -> Fields:
    return {"role": "tool", "tool_call_id": "call_1", "content": content, **fields}


def text(*parts: Any) -> list[Any]:
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


CACHED = {"cache_control": {"type": "ephemeral"}}
THOUGHT = {"type": "thinking", "thinking": "Well.", "signature": "c2ln"}
REFUSAL = {"type": "refusal", "refusal": "No."}
DETAILS = [{"type": "reasoning.text", "text": "Well.", "format": "anthropic-claude-v1"}]
TAKEN: list[tuple[Fields, str]] = [
    # tashfeenahmed/freellmapi#165, defilantech/LLMKube#935: an answer without content and calls
    (answer(None), ""),
    ({"role": "assistant"}, ""),
    (answer([]), ""),
    (answer([{"type": "text", "text": None}, *text("Hi")]), "Hi"),
    # BerriAI/litellm#30835, charmbracelet/crush#1590, avante-corp/avante.nvim#3186: thoughts
    (answer(reasoning_content=""), "Hi"),
    (answer(reasoning_content="Well."), "Hi"),
    (answer(reasoning="Well.", reasoning_details=DETAILS), "Hi"),
    (answer(thinking_blocks=[THOUGHT], provider_specific_fields={"a": [1]}), "Hi"),
    (answer([THOUGHT, *text("Hi")]), "Hi"),
    # openai/openai-python#2374, #2720: what the SDK adds
    (answer(parsed={"a": 1}, refusal=None, annotations=[], audio=None), "Hi"),
    (answer(None, refusal="No."), "No."),
    (answer([REFUSAL]), "No."),
    # QuantumNous/new-api#5982, cline/cline#1387: what other servers keep in a cache
    (answer([text("Hi")[0] | CACHED], **CACHED), "Hi"),
    # Other names of parts, of messages, and of those who wrote them
    (answer([{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}]), "Hi"),
    (answer(["H", "i"]), "Hi"),
    (answer(name="Ann", id="msg_1", status="completed", weight=1), "Hi"),
]
# Arguments, and how the prompt shows them.
ARGUMENTS: list[tuple[Any, Any]] = [
    # vllm-project/vllm#43995, ggml-org/llama.cpp#22948, OpenHands/software-agent-sdk#2887
    *((cut, cut) for cut in ('{"a": ', '{"a": "b', '{"a": "b"}}', "{'a': 1}", "[1]", "5", "x")),
    ("", {}),
    (None, {}),
    ("null", {}),
    ([], {}),
    ({"a": 1}, {"a": 1}),
    ('"{\\"a\\": 1}"', {"a": 1}),
    (' {"a": 1}\n', {"a": 1}),
    ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
]
TAKEN += [
    (calling(call(given)), f'{{"tool_calls": [{{"name": "f", "arguments": {as_json(shown)}}}]}}')
    for given, shown in ARGUMENTS
]
CALLED_ONCE = answer(None, function_call={"name": "f", "arguments": "{}"})
NO_ARGUMENTS = '{"tool_calls": [{"name": "f", "arguments": {}}]}'
TAKEN += [
    # Names and ids of other servers
    (calling(call(name=name)), NO_ARGUMENTS.replace('"f"', as_json(name)))
    for name in ("default_api:read", "mcp__files/read.text", "a b", "x" * 128, "", "größe")
]
TAKEN += [
    (calling(call(id=call_id)), NO_ARGUMENTS)
    for call_id in ("toolu_01A", "fc_1|call_1", "functions.f:0", "x" * 2000, "", None)
]
TAKEN += [
    (calling({"function": {"name": "f"}}), NO_ARGUMENTS),
    (calling(call(index=0, type=None)), NO_ARGUMENTS),
    (calling(call(parsed_arguments={})), NO_ARGUMENTS),
    (calling(call(extra_content={"google": {"thought_signature": "a"}})), NO_ARGUMENTS),
    (calling(call(), content="Hi"), f"Hi\n{NO_ARGUMENTS}"),
    (CALLED_ONCE, NO_ARGUMENTS),
    (
        calling({"id": "a", "type": "custom", "custom": {"name": "f", "input": "*** Begin"}}),
        NO_ARGUMENTS.replace("{}", '"*** Begin"'),
    ),
]


@pytest.mark.parametrize(("message", "shown"), TAKEN, ids=lambda one: str(one)[:70])
async def test_answers_are_taken_as_clients_replay_them(
    gateway: Gateway, message: Fields, shown: str
) -> None:
    gateway.say("fine")
    await gateway.answer(CHAT, messages=[*USER, message, *USER])
    hello = "<|user|>Hello\n"
    assert prompt_of(gateway) == f"{hello}<|assistant|>{shown}\n{hello}<|assistant|>"


OTHERS: list[tuple[list[Fields], str]] = [
    ([calling(call()), result(None)], '<|user|>{"name": "f", "result": ""}'),
    ([calling(call()), result(text("s", "un"))], '<|user|>{"name": "f", "result": "sun"}'),
    ([calling(call()), result(tool_call_id="other")], '<|user|>{"result": "sun"}'),
    ([calling(call()), result(name="g")], '<|user|>{"name": "g", "result": "sun"}'),
    ([result()], '<|user|>{"result": "sun"}'),
    ([result(tool_calls=[]), result("moon")], '<|user|>{"result": "sun"}\n{"result": "moon"}'),
    (
        [CALLED_ONCE, {"role": "function", "name": "f", "content": "sun"}],
        '<|user|>{"name": "f", "result": "sun"}',
    ),
    ([{"role": "developer", "content": text("Be brief.")}], "<|system|>Be brief."),
    ([{"role": "user", "content": "Hi", "name": "Ann", "tool_calls": None}], "<|user|>Hi"),
    ([{"role": "user", "content": text("Hi"), **CACHED}], "<|user|>Hi"),
]


@pytest.mark.parametrize(("messages", "shown"), OTHERS, ids=lambda one: str(one)[:70])
async def test_results_and_questions_are_taken_too(
    gateway: Gateway, messages: list[Fields], shown: str
) -> None:
    gateway.say("fine")
    await gateway.answer(CHAT, messages=[*USER, *messages])
    assert prompt_of(gateway).endswith(f"{shown}\n<|assistant|>")


class Weather(BaseModel):
    city: str


# It warns of the fields that it added itself.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_what_the_official_client_parsed_goes_back(gateway: Gateway) -> None:
    parse = gateway.client.chat.completions.parse
    options: Any = {"model": "tiny", "messages": USER, "response_format": Weather}
    gateway.say('{"city": "Rome"}')
    message = (await parse(**options)).choices[0].message
    assert message.parsed == Weather(city="Rome")
    await parse(**options | {"messages": [*USER, message, *USER]})
    assert '<|assistant|>{"city": "Rome"}\n' in prompt_of(gateway)
    tool: Any = {"name": "f", "strict": True, "parameters": Weather.model_json_schema()}
    tool["parameters"]["additionalProperties"] = False
    options["tools"] = [{"type": "function", "function": tool}]
    gateway.say('{"tool_calls": [{"name": "f", "arguments": {"city": "Rome"}}]}')
    message = (await parse(**options)).choices[0].message
    (parsed,) = message.tool_calls or []
    assert parsed.function.parsed_arguments == {"city": "Rome"}
    gateway.say('{"city": "Rome"}')
    answered = result(tool_call_id=parsed.id)
    await parse(**options | {"messages": [*USER, message, answered]})
    assert '"arguments": {"city": "Rome"}}]}\n<|user|>{"name": "f"' in prompt_of(gateway)


async def test_a_call_that_was_cut_off_here_goes_back(gateway: Gateway) -> None:
    tools: Any = [{"type": "function", "function": {"name": "f"}}]
    gateway.say('{"tool_calls": [{"name": "f", "arguments": {', reason=LENGTH)
    gateway.scheduler.script.steps = gateway.scheduler.script.steps[:-1]
    message = (await gateway.chat(tools=tools)).choices[0].message
    assert message.tool_calls[0].function.arguments == "{"
    gateway.say("fine")
    failure = result("cut off", tool_call_id=message.tool_calls[0].id)
    await gateway.chat(tools=tools, messages=[*USER, message, failure])
    assert '"arguments": "{"}]}\n<|user|>{"name": "f", "result": "cut off"}' in prompt_of(gateway)


LENGTH = scheduler_pb2.FINISH_REASON_LENGTH
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}
NO_TEXT = [IMAGE, {"type": "input_audio", "input_audio": {}}, {"type": "file", "file": {}}]
NO_TEXT += [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]
NO_TEXT += [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]
WRONG: list[tuple[list[Fields], str, str]] = [
    *(
        (
            [{"role": "user", "content": [*text("See"), part]}],
            "messages[0].content[1].type",
            f"'{part['type']}' is not read; this model reads text only",
        )
        for part in NO_TEXT
    ),
    *(
        ([*USER, {"role": role, "content": "x"}], "messages[1].role", "'assistant', 'tool'")
        for role in ("ipython", "critic", "model", "", None, 5)
    ),
    ([{"content": "x"}], "messages[0].role", "required"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]", "have a text"),
    *(
        ([{"role": role, "content": None}], "messages[0].content", "required")
        for role in ("user", "system", "developer")
    ),
    ([{"role": "user", "content": "x", "tool_calls": [call()]}], "messages[0].tool_calls", "calls"),
    (
        [{"role": "user", "content": "x", "function_call": {"name": "f"}}],
        "messages[0].function_call",
        "calls",
    ),
    ([calling({"id": "a"})], "messages[0].tool_calls[0].function", "required"),
    ([calling(call(5))], "messages[0].tool_calls[0].function.arguments", ""),
]


@pytest.mark.parametrize(("messages", "param", "reason"), WRONG, ids=lambda one: str(one)[:70])
async def test_what_cannot_be_shown_is_named(
    gateway: Gateway, messages: list[Fields], param: str, reason: str
) -> None:
    error = await gateway.refused(CHAT, messages=messages)
    assert error["param"] == param
    assert reason in error["message"]
    assert not gateway.adds


# What templates of other families read; the first line has the values for it.
VALUES = (
    "{{ [enable_thinking, thinking, reasoning_effort, style] | map('default', '-') | join(' ') }}\n"
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shows(
    tmp_path_factory: pytest.TempPathFactory, backend: Backend
) -> AsyncIterator[Gateway]:
    """A gateway whose chat template shows the values that it is given."""
    directory: Path = tmp_path_factory.mktemp("shows") / "tiny"
    save_model(directory, 512, VALUES)
    async with starting(directory, load_tokenizer(str(directory)), backend) as gateway:
        gateway.say("fine")
        yield gateway


# yangyaofei/dify-vllm-provider#32, run-llama/llama_index#18635, BerriAI/litellm
SWITCHES: list[tuple[Fields, str]] = [
    ({}, "- - - -"),
    ({"chat_template_kwargs": None, "reasoning_effort": None, "thinking": None}, "- - - -"),
    ({"chat_template_kwargs": {}, "reasoning_effort": ""}, "- - - -"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "False - - -"),
    ({"chat_template_kwargs": {"thinking": True, "style": "terse", "more": [1]}}, "- True - terse"),
    ({"enable_thinking": False}, "False False - -"),
    ({"enable_thinking": True}, "True True - -"),
    ({"thinking": {"type": "disabled"}}, "False False - -"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "True True - -"),
    ({"thinking": {"type": "adaptive"}}, "- - - -"),
    ({"thinking": {"type": ["enabled"], "budget_tokens": None}}, "- - - -"),
    ({"reasoning_effort": "none"}, "False False - -"),
    *(
        ({"reasoning_effort": effort}, f"True True {effort} -")
        for effort in ("minimal", "low", "medium", "high", "xhigh", "max")
    ),
    ({"reasoning_effort": "high", "enable_thinking": False}, "False False - -"),
    (
        {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
        "False True high -",
    ),
]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(("extra", "shown"), SWITCHES, ids=lambda one: str(one)[:70])
async def test_values_for_the_template(shows: Gateway, extra: Fields, shown: str) -> None:
    await shows.answer(CHAT, **extra)
    assert prompt_of(shows).splitlines()[0] == shown
    tokenized = await shows.answer("/tokenize", messages=USER, **extra)
    assert tokenized["tokens"] == tokens(shows.adds[-1].prompt_token_ids)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    "fields", [{"reasoning_content": "Well."}, {"reasoning": "Well."}, {"content": [THOUGHT]}]
)
async def test_the_template_reads_earlier_thoughts(shows: Gateway, fields: Fields) -> None:
    message = answer() | fields
    await shows.answer(CHAT, messages=[*USER, message, *USER])
    shown = "" if "content" in fields else "Hi"
    assert f"<|assistant|><think>Well.</think>{shown}\n" in prompt_of(shows)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": [0] * 20_001}}, "chat_template_kwargs"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"enable_thinking": "yes"}, "enable_thinking"),
        ({"thinking": "enabled"}, "thinking"),
        ({"add_generation_prompt": "x"}, "add_generation_prompt"),
    ],
    ids=lambda one: str(one)[:60],
)
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_what_is_wrong_for_the_template_is_named(
    gateway: Gateway, path: str, extra: Fields, param: str
) -> None:
    assert (await gateway.refused(path, messages=USER, **extra))["param"] == param


PREFILL = answer("def main(arg")
CONTINUED: list[tuple[list[Fields], Fields]] = [
    ([PREFILL], {"continue_final_message": True}),
    ([PREFILL], {"continue_final_message": True, "add_generation_prompt": False}),
    ([PREFILL | {"content": text("def main", "(arg")}], {"continue_final_message": True}),
    ([PREFILL | {"prefix": True}], {}),
    ([PREFILL | {"partial": True, "tool_calls": []}], {"add_generation_prompt": None}),
]


@pytest.mark.parametrize(("messages", "extra"), CONTINUED, ids=lambda one: str(one)[:70])
async def test_an_answer_continues_the_last_message(
    gateway: Gateway, messages: list[Fields], extra: Fields
) -> None:
    gateway.say("ument):", width=2, accepted=[1])
    extra = {"messages": [*USER, *messages], **extra}
    prediction = {"type": "content", "content": "ument): pass"}
    answered = await gateway.answer(CHAT, prediction=prediction, **extra)
    assert answered["choices"][0]["message"]["content"] == "ument):"
    assert prompt_of(gateway) == "<|user|>Hello\n<|assistant|>def main(arg"
    add = gateway.adds[-1]
    assert gateway.backend.decode(tokens(add.predicted_token_ids)) == "ument): pass"
    tokenized = await gateway.answer("/tokenize", **extra)
    assert tokenized["tokens"] == tokens(add.prompt_token_ids)


@pytest.mark.parametrize(
    ("messages", "extra", "reason"),
    [
        (USER, {}, "the last message must be the assistant's, without calls"),
        ([*USER, calling(call())], {}, "without calls"),
        ([*USER, PREFILL], {"add_generation_prompt": True}, "together with add_generation_prompt"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_what_cannot_be_continued(
    gateway: Gateway, path: str, messages: list[Fields], extra: Fields, reason: str
) -> None:
    extra = {"messages": messages, "continue_final_message": True, **extra}
    error = await gateway.refused(path, **extra)
    assert error["param"] == "continue_final_message"
    assert reason in error["message"]
