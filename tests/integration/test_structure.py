"""Forms of answers and tools with drafts, through all services: the answer is the same.

The bundled model knows edits and nothing of JSON; whatever it writes has to follow the grammar.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

import jsonschema
import pytest
from openai import APIError, APIStatusError, BadRequestError, InternalServerError, OpenAI

from optimist_cli.client import ChatRequest, GatewayClient
from tests.chaos.load.answer import Answer, Choice
from tests.chaos.load.case import LIKELY_PERSON, PERSON
from tests.integration.edit import complete, edits, predict
from tests.stack import WHITE_SPACE, our_engine

TOOLS = [
    {"type": "function", "function": {"name": "save", "parameters": PERSON, "strict": True}},
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}},
]
CALL = f'{{"tool_calls": [{{"name": "save", "arguments": {LIKELY_PERSON}}}]}}'
SAVE = {"type": "function", "function": {"name": "save"}}
FORM = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
END = 3
LARK = 'start: WORD ("," WORD)+ "."\nWORD: /[a-z]{1,6}/'

# Not strict: the pattern and what no grammar follows are left out, and there may be other keys.
LOOSE: dict[str, Any] = {"type": "object", "uniqueItems": True, "required": ["name", "tags"]}
LOOSE["properties"] = {
    "name": {"type": "string", "pattern": "^(?!x).*$", "maxLength": 30},
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 4},
}
LOOSE_FORM = {"type": "json_schema", "json_schema": {"name": "p", "schema": LOOSE}}

LONG = {"type": "string", "minLength": 300, "maxLength": 50_000}
LONG_FORM = {"type": "array", "items": LONG, "minItems": 2, "maxItems": 50_000}
# The lexer needs a state for each set of places at which its first letter was.
LOOK_BACK = r"(.|\n)*e(.|\n){40}r"

FORMS: dict[str, dict[str, Any]] = {
    "json_schema": {"response_format": FORM},
    "a schema that is not strict": {"response_format": LOOSE_FORM},
    "json_schema with a stop string": {"response_format": FORM, "stop": ['"age"']},
    "regex": {"structured_outputs": {"regex": "[a-z_]{3,20}(, [a-z]{2,8}){2}"}},
    "choice": {"structured_outputs": {"choice": ["def main", "return total", "print"]}},
    "grammar": {"structured_outputs": {"grammar": LARK}},
    "large bounds": {"structured_outputs": {"json": LONG_FORM}},
    "many states": {"structured_outputs": {"regex": LOOK_BACK}},
    "a call": {"tools": TOOLS, "tool_choice": SAVE},
    "calls": {"tools": TOOLS, "tool_choice": "required"},
    # A model that calls nothing says what it would say.
    "maybe calls": {"tools": TOOLS, "tool_choice": "auto"},
}


def create(client: OpenAI, body: dict[str, Any], prediction: str | None, **options: Any) -> Any:
    extra = body | (predict(prediction) if prediction is not None else {})
    options = {"max_tokens": 80, "messages": edits(1)[0].messages()} | options
    return complete(client, extra_body=extra, **options)


def said(parts: Iterable[Any]) -> Choice:
    """Returns the only choice of a whole answer or of chunks."""
    answer = Answer()
    for part in parts:
        answer.take(part.model_dump())
    return answer.choices[0]


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_of_a_form_is_the_same_with_any_drafts(client: OpenAI, name: str) -> None:
    body = FORMS[name]
    plain = said([create(client, body | {"num_speculative_tokens": 0}, None)])
    assert plain.num_ends == 1
    assert said([create(client, body, None)]) == plain
    likely = CALL if "tools" in body else LIKELY_PERSON
    assert said([create(client, body, "total, count, index.")]) == plain
    assert said(create(client, body, likely, stream=True)) == plain


def test_calls_are_a_part_of_the_text_that_benchmarks_compare(client: OpenAI) -> None:
    gateway = GatewayClient(str(client.base_url), client.api_key)
    request = ChatRequest(gateway.model(), edits(1)[0].messages(), max_tokens=80, tools=TOOLS)
    text = "".join(chunk.text for chunk in gateway.chat(request).chunks)
    gateway.close()
    (call,) = create(client, FORMS["calls"], None).choices[0].message.tool_calls
    assert text == call.function.name + call.function.arguments


@our_engine(reason=WHITE_SPACE)
def test_predicted_tokens_of_a_form_are_accepted(client: OpenAI) -> None:
    body = FORMS["json_schema"]
    plain = create(client, body, None, max_tokens=120)
    text = plain.choices[0].message.content
    jsonschema.validate(json.loads(text), PERSON)
    answer = create(client, body, text, max_tokens=120)
    assert answer.choices[0].message.content == text
    # The model spells much of it in other tokens than the tokenizer.
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 0


@our_engine(reason="vLLM drafts nothing from a form")
def test_what_the_form_leaves_to_write_is_drafted(client: OpenAI) -> None:
    text = "there is nothing else that this answer may say"
    answer = create(client, {"structured_outputs": {"choice": [text]}}, None)
    assert answer.choices[0].message.content == text
    usage = answer.usage.completion_tokens_details.model_extra
    assert usage["tokens_by_source"]["form"] > answer.usage.completion_tokens / 2


@our_engine(reason=WHITE_SPACE)
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


def test_an_answer_that_stops_is_complete(client: OpenAI) -> None:
    """However many states its lexer has come to: a limit on them is none of the text."""
    body = {"structured_outputs": {"regex": LOOK_BACK}}
    for prediction in (None, "return total, count, index."):
        answer = create(client, body, prediction).choices[0]
        is_complete = re.fullmatch(LOOK_BACK, answer.message.content) is not None
        assert answer.finish_reason == ("stop" if is_complete else "length")


TOO_SHORT: dict[str, tuple[dict[str, Any], type[APIStatusError], str]] = {
    "choices that are known to be": (
        {"choice": ["a", "b"]},
        BadRequestError,
        "min_tokens: 30 is more than the 1 tokens that may be generated",
    ),
    "choices": (
        {"choice": ["def main(path): print(path, path)", "b"]},
        InternalServerError,
        "min_tokens: the answer has to end before it has as many tokens",
    ),
    "a regex": (
        {"regex": "[ab]{1,15}"},
        InternalServerError,
        "min_tokens: the answer has to end before it has as many tokens",
    ),
}


@pytest.mark.parametrize("name", TOO_SHORT)
def test_a_form_that_is_too_short_for_min_tokens_is_an_error(client: OpenAI, name: str) -> None:
    form, kind, message = TOO_SHORT[name]
    body = {"structured_outputs": form, "min_tokens": 30}
    for prediction in (None, "def main(path): print(path, path)"):
        with pytest.raises(kind) as refusal:
            create(client, body, prediction)
        assert refusal.value.body is not None
        assert message in refusal.value.message
    # In a stream it is the last event.
    if kind is InternalServerError:
        with pytest.raises(APIError, match=message):
            list(create(client, body, None, stream=True))


def test_no_end_is_chosen_before_min_tokens(client: OpenAI) -> None:
    edit = edits(1)[0]
    usual = create(client, {}, None, max_tokens=200).choices[0]
    assert usual.finish_reason == "stop"
    body = {"min_tokens": 120, "logprobs": True, "top_logprobs": 3, "return_token_ids": True}
    plain = create(client, body, None, max_tokens=130)
    for prediction in (edit.before, usual.message.content * 2):
        choice = create(client, body, prediction, max_tokens=130).choices[0]
        assert choice.token_ids == plain.choices[0].token_ids
        # All of them are text but the one that ends it.
        text = "".join(one.token for one in choice.logprobs.content)
        assert text.removesuffix("<|end|>") == choice.message.content
    assert choice.message.content.startswith(usual.message.content)
    assert plain.usage.completion_tokens >= 120
    assert END not in choice.token_ids[:120]
    # It is a stop token like others.
    stops = choice.token_ids[3:5]
    body |= {"stop_token_ids": stops, "ignore_eos": True}
    other = create(client, body, usual.message.content, max_tokens=130).choices[0]
    assert not {END, *stops} & {*other.token_ids[:120]}
