"""Forms of answers and tools with predictions, through all services: the answer is the same.

The bundled model knows edits and nothing of JSON; whatever it writes has to follow the grammar.
"""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

from tests.chaos.load.case import LIKELY_PERSON, PERSON
from tests.integration.edit import MODEL, edits

TOOLS = [
    {"type": "function", "function": {"name": "save", "parameters": PERSON, "strict": True}},
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}},
]
CALL = f'{{"tool_calls": [{{"name": "save", "arguments": {LIKELY_PERSON}}}]}}'
SAVE = {"type": "function", "function": {"name": "save"}}

FORMS: dict[str, dict[str, Any]] = {
    "json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
    },
    "regex": {"structured_outputs": {"regex": "[a-z_]{3,20}(, [a-z]{2,8}){2}"}},
    "choice": {"structured_outputs": {"choice": ["def main", "return total", "print"]}},
    "grammar": {
        "structured_outputs": {"grammar": 'start: WORD ("," WORD)+ "."\nWORD: /[a-z]{1,6}/'}
    },
    "a call": {"tools": TOOLS, "tool_choice": SAVE},
    "calls": {"tools": TOOLS, "tool_choice": "required"},
}


def create(client: OpenAI, body: dict[str, Any], prediction: str | None, **options: Any) -> Any:
    extra = dict(body)
    if prediction is not None:
        extra["prediction"] = {"type": "content", "content": prediction}
    options = {"temperature": 0.0, "max_tokens": 120, "messages": edits(1)[0].messages()} | options
    send: Any = client.chat.completions.create
    return send(model=MODEL, extra_body=extra, **options)


def said(message: Any) -> tuple[str | None, list[tuple[str, str]]]:
    calls = message.tool_calls or []
    return message.content, [(call.function.name, call.function.arguments) for call in calls]


def streamed(chunks: Iterator[Any]) -> tuple[str | None, list[tuple[str, str]], str | None]:
    content, reason = "", None
    calls: list[tuple[str, str]] = []
    for chunk in chunks:
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                if call.id is not None:
                    assert call.index == len(calls)
                    calls.append((call.function.name, call.function.arguments))
                else:
                    name, arguments = calls[call.index]
                    calls[call.index] = (name, arguments + call.function.arguments)
    return content or None, calls, reason


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_of_a_form_is_the_same_with_a_prediction(client: OpenAI, name: str) -> None:
    body = FORMS[name]
    plain = create(client, body, None).choices[0]
    for prediction in (CALL if "tools" in body else LIKELY_PERSON, "total, count, index."):
        predicted = create(client, body, prediction).choices[0]
        assert said(predicted.message) == said(plain.message)
        assert predicted.finish_reason == plain.finish_reason
        got = streamed(create(client, body, prediction, stream=True))
        assert got == (*said(plain.message), plain.finish_reason)


def test_predicted_tokens_of_a_form_are_accepted(client: OpenAI) -> None:
    body = FORMS["json_schema"]
    plain = create(client, body, None)
    text = plain.choices[0].message.content
    jsonschema.validate(json.loads(text), PERSON)
    answer = create(client, body, text)
    assert answer.choices[0].message.content == text
    # The model spells much of it in other tokens than the tokenizer.
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_each_sampled_choice_follows_the_schema(client: OpenAI) -> None:
    options: dict[str, Any] = {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 1500}
    body = FORMS["json_schema"]
    answer = create(client, body, LIKELY_PERSON, **options)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), PERSON)
    again = create(client, body, None, **options)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.message.content for choice in again.choices] == texts


def test_calls_of_several_choices_have_valid_arguments(client: OpenAI) -> None:
    answer = create(client, FORMS["a call"], CALL, n=2, temperature=1.0, max_tokens=1500)
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        (call,) = choice.message.tool_calls
        assert call.function.name == "save"
        jsonschema.validate(json.loads(call.function.arguments), PERSON)


def test_a_stop_string_within_a_form(client: OpenAI) -> None:
    body = FORMS["json_schema"]
    plain = create(client, body, None, stop=['"age"']).choices[0]
    predicted = create(client, body, LIKELY_PERSON, stop=['"age"']).choices[0]
    assert plain.message.content == predicted.message.content
    assert '"age"' not in plain.message.content
    assert plain.finish_reason == "stop"


def test_log_probabilities_of_a_form(client: OpenAI) -> None:
    body = FORMS["json_schema"]
    answer = create(client, body, LIKELY_PERSON, logprobs=True, top_logprobs=2).choices[0]
    assert b"".join(bytes(one.bytes) for one in answer.logprobs.content[:-1]).decode() == (
        answer.message.content
    )


def test_tools_leave_the_model_its_text(client: OpenAI) -> None:
    """With `auto` a model that calls nothing says what it says without tools."""
    edit = edits(2)[1]
    body: dict[str, Any] = {"tools": TOOLS, "tool_choice": "auto"}
    plain = create(client, body, None, messages=edit.messages(), max_tokens=400).choices[0]
    predicted = create(client, body, edit.before, messages=edit.messages(), max_tokens=400)
    assert said(predicted.choices[0].message) == said(plain.message)


def test_completions_follow_a_form_too(client: OpenAI) -> None:
    body = {"structured_outputs": {"regex": "[a-z]{5}!"}}
    send: Any = client.completions.create
    plain = send(model=MODEL, prompt="def ", max_tokens=30, temperature=0.0, extra_body=body)
    body |= {"prediction": {"type": "content", "content": "total!"}}
    predicted = send(model=MODEL, prompt="def ", max_tokens=30, temperature=0.0, extra_body=body)
    assert predicted.choices[0].text == plain.choices[0].text
    assert len(plain.choices[0].text) == 6
    assert plain.choices[0].finish_reason == "stop"
