"""Numbers in bodies; and how much is looked at of a body that is wrong."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from optimist_gateway.fronts.openai.bodies.base import Body
from optimist_gateway.fronts.openai.bodies.chat import ChatCompletionBody
from optimist_gateway.fronts.openai.completions import CompletionBody
from optimist_gateway.fronts.openai.models import DetokenizeBody, TokenizeBody
from optimist_gateway.fronts.openai.responses.body import ResponsesBody

PROMPT = {"model": "tiny", "prompt": "x"}


@pytest.mark.parametrize(
    ("text", "number"), [("2", 2), ("2.0", 2), ("-2e1", -20), ("-0.0", 0), ("null", None)]
)
def test_a_number_without_a_fraction_is_whole(text: str, number: int | None) -> None:
    body = CompletionBody.model_validate(PROMPT | {"seed": json.loads(text)})
    assert body.seed == number
    assert type(body.seed) is type(number)


@pytest.mark.parametrize("text", ["2.5", "1e400", "NaN", "true", '"2"', "1e300"])
def test_other_numbers_are_not(text: str) -> None:
    with pytest.raises(ValidationError, match="n\n"):
        CompletionBody.model_validate(PROMPT | {"n": json.loads(text)})


def test_so_are_those_in_lists() -> None:
    tokens = [[1.0, 2], [3]]
    body = CompletionBody.model_validate(PROMPT | {"predicted_token_ids": tokens})
    assert body.predicted_token_ids == [[1, 2], [3]]
    with pytest.raises(ValidationError, match="predicted_token_ids"):
        CompletionBody.model_validate(PROMPT | {"predicted_token_ids": [[1.5]]})


BODIES: list[type[Body]] = [
    ChatCompletionBody,
    CompletionBody,
    ResponsesBody,
    TokenizeBody,
    DetokenizeBody,
]


def _list_schemas(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        for value in schema.values():
            yield from _list_schemas(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _list_schemas(value)


@pytest.mark.parametrize("body", BODIES)
def test_every_list_ends_at_its_first_error(body: type[BaseModel]) -> None:
    lists = list(_list_schemas(body.__pydantic_core_schema__))
    assert lists
    for found in lists:
        assert found.get("fail_fast") or found["items_schema"]["type"] == "any", found


@pytest.mark.parametrize(
    "wrong",
    [
        {f"unknown_{number}": number for number in range(10_000)},
        {"logit_bias": {f"a{number}": "x" for number in range(10_000)}},
        {"metadata": {str(number): number for number in range(10_000)}},
        {"messages": [{"role": "user", "content": [{}] * 4096}] * 1000},
        {"messages": [{f"unknown_{number}": 1 for number in range(100)}] * 1000},
        {"tools": [{"type": "function", "function": {}}] * 128},
    ],
)
def test_few_errors_are_gathered_of_a_body(wrong: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]} | wrong
    with pytest.raises(ValidationError) as raised:
        ChatCompletionBody.model_validate(body)
    assert raised.value.error_count() < 128
