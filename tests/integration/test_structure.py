"""Forms of answers and tools with predictions, through all services: the answer is the same.

The bundled model knows edits and nothing of JSON; whatever it writes has to follow the grammar.
"""

import json
from collections.abc import Iterable
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

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
LARK = 'start: WORD ("," WORD)+ "."\nWORD: /[a-z]{1,6}/'

FORMS: dict[str, dict[str, Any]] = {
    "json_schema": {"response_format": FORM},
    "json_schema with a stop string": {"response_format": FORM, "stop": ['"age"']},
    "regex": {"structured_outputs": {"regex": "[a-z_]{3,20}(, [a-z]{2,8}){2}"}},
    "choice": {"structured_outputs": {"choice": ["def main", "return total", "print"]}},
    "grammar": {"structured_outputs": {"grammar": LARK}},
    "a call": {"tools": TOOLS, "tool_choice": SAVE},
    "calls": {"tools": TOOLS, "tool_choice": "required"},
    # A model that calls nothing says what it would say.
    "maybe calls": {"tools": TOOLS, "tool_choice": "auto"},
}


def create(client: OpenAI, body: dict[str, Any], prediction: str | None, **options: Any) -> Any:
    extra = body | (predict(prediction) if prediction is not None else {})
    options = {"max_tokens": 120, "messages": edits(1)[0].messages()} | options
    return complete(client, extra_body=extra, **options)


def said(parts: Iterable[Any]) -> Choice:
    """Returns the only choice of a whole answer or of chunks."""
    answer = Answer()
    for part in parts:
        answer.take(part.model_dump())
    return answer.choices[0]


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_of_a_form_is_the_same_with_a_prediction(client: OpenAI, name: str) -> None:
    body = FORMS[name]
    plain = said([create(client, body, None)])
    assert plain.num_ends == 1
    for prediction in (CALL if "tools" in body else LIKELY_PERSON, "total, count, index."):
        assert said([create(client, body, prediction)]) == plain
        assert said(create(client, body, prediction, stream=True)) == plain


@our_engine(reason=WHITE_SPACE)
def test_predicted_tokens_of_a_form_are_accepted(client: OpenAI) -> None:
    body = FORMS["json_schema"]
    plain = create(client, body, None)
    text = plain.choices[0].message.content
    jsonschema.validate(json.loads(text), PERSON)
    answer = create(client, body, text)
    assert answer.choices[0].message.content == text
    # The model spells much of it in other tokens than the tokenizer.
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 0


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
