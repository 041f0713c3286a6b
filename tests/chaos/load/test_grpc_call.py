"""Which REST bodies can be asked over gRPC."""

from typing import Any

import pytest

from tests.chaos.load.grpc_call import is_in_grpc

MESSAGES = {"messages": [{"role": "user", "content": "x"}]}
SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True},
        {"prediction": {"type": "content", "content": "x"}, "n": 2, "seed": 1, "temperature": 1},
        {"predicted_token_ids": [[1, 2], [3]], "logit_bias": {"5": 1.0}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        {"structured_outputs": {"grammar": "start: /a/"}, "logprobs": True, "top_logprobs": 2},
    ],
)
def test_what_both_have_is_asked(fields: dict[str, Any]) -> None:
    assert is_in_grpc(MESSAGES | fields)


@pytest.mark.parametrize(
    "body",
    [
        MESSAGES | {"tools": []},
        MESSAGES | {"structured_outputs": {"regex": "a"}},
        {"prompt": "x", "echo": True},
        {"prompt": "x", "logprobs": 1},
        {"prompt": ["x", "y"]},
    ],
)
def test_what_only_rest_has_is_not(body: dict[str, Any]) -> None:
    assert not is_in_grpc(body)
