"""Names of fields in errors about translated requests."""

import pytest
from pydantic import BaseModel, Field

from optimist_gateway.fronts.openai.errors import ApiError
from optimist_gateway.generation.field_names import FieldNames

NAMES = FieldNames({"messages": "input", "messages[0]": "instructions", "top_p": "sampling.top_p"})


class Inner(BaseModel):
    size: int = Field(ge=1)


class Outer(BaseModel):
    messages: list[Inner]


@pytest.mark.parametrize(
    ("param", "renamed"),
    [
        ("messages", "input"),
        ("messages[0]", "instructions"),
        ("messages[0].content", "instructions.content"),
        ("messages[1].content", "input[1].content"),
        ("messages_too", "messages_too"),
        ("top_p", "sampling.top_p"),
        ("top", "top"),
    ],
)
def test_the_longest_name_counts(param: str, renamed: str) -> None:
    error = NAMES.renamed(ApiError(400, f"{param}: is wrong", param=param))
    assert error.param == renamed
    assert error.message == f"{renamed}: is wrong"


def test_other_messages_stay() -> None:
    error = NAMES.renamed(ApiError(400, "the context is too short", param="messages"))
    assert (error.message, error.param) == ("the context is too short", "input")
    assert NAMES.renamed(ApiError(503, "gone")).param is None


def test_bodies_are_checked_under_the_names_that_came() -> None:
    assert NAMES.validated(Outer, {"messages": [{"size": 2}]}).messages[0].size == 2
    with pytest.raises(ApiError) as caught:
        NAMES.validated(Outer, {"messages": [{"size": 1}, {"size": 0}]})
    assert caught.value.param == "input[1].size"
    assert caught.value.message.startswith("input[1].size: ")
