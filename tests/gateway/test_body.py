"""Numbers in bodies."""

import json

import pytest
from pydantic import ValidationError

from optimist_gateway.api.completion_body import CompletionBody

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


def test_decimal_numbers_stay_decimal() -> None:
    body = CompletionBody.model_validate(PROMPT | {"temperature": 1.0, "top_p": 1})
    assert isinstance(body.temperature, float)
    assert isinstance(body.top_p, float)
