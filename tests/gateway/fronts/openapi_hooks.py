"""Hooks of schemathesis: what no JSON schema can say of the bodies that are accepted.

Rules between fields, and what only the tokenizer or the compiler of grammars knows, are answered
by a 400 with a `param` and a `code`. `REFUSALS` names all of them; any other 400 for a body
that the document allows is a failure.
"""

import re
from typing import Any

import hypothesis.strategies as st
import schemathesis
from schemathesis.checks import CheckContext
from schemathesis.core.transport import Response
from schemathesis.generation.case import Case
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.stack import ENGINE_PYTHON

# Arrays and texts of such lengths are made in no time; other tests go to the longer limits.
MAX_ITEMS = 64
MAX_LENGTH = 1024

_ANSWER = {
    # The prompt with the answer is longer than the model's longest sequence.
    (r"prompt(\[\d+\])?|messages|input|tools", "context_length_exceeded"),
    # More tokens than the answer may have.
    ("min_tokens", "invalid_value"),
    # Bytes, where a schema counts characters.
    ("cache_salt", "invalid_value"),
    # Only one of it and `prediction`.
    ("predicted_token_ids", "invalid_value"),
    # Together they are too long.
    (r"(prediction|predicted_token_ids)(\[\d+\])?(\.content)?", "prediction_too_long"),
    # No grammar is made of it: a keyword, a reference, or a pattern that no grammar can follow.
    (r"structured_outputs\.(json|regex|choice|grammar)(\..*|\[.*)?", "invalid_value"),
    # Only one of it and a response format.
    ("structured_outputs", "invalid_value"),
    # Only with log-probabilities.
    ("top_logprobs", "invalid_value"),
    # It names no tool, or there are none.
    (r"tool_choice(\..*)?", "invalid_value"),
    # Two tools of one name, or arguments that no grammar follows.
    (r"tools(\[\d+\])*(\.(function|tools\[\d+\]))?(\.(name|parameters.*))?", "invalid_value"),
}
_CHOICES = {
    # Only when `stream` is true.
    ("stream_options", "invalid_value")
}
# What vLLM does not do, where that runs the model; our own engine refuses none of it.
_UNSUPPORTED = ["min_p|logit_bias|priority|num_speculative_tokens"] if ENGINE_PYTHON else []
_ENGINE = {(names, "unsupported_value") for names in _UNSUPPORTED}
REFUSALS: dict[str, set[tuple[str, str]]] = {
    "/v1/chat/completions": {
        *_ANSWER,
        *(*_CHOICES, *_ENGINE),
        # What the chat template refuses.
        ("messages", "invalid_value"),
        # Only one of it and `max_completion_tokens`.
        ("max_tokens", "invalid_value"),
        # No grammar is made of it.
        (r"response_format\.json_schema\.schema.*", "invalid_value"),
    },
    "/v1/completions": {
        *_ANSWER,
        *(*_CHOICES, *_ENGINE),
        # Not less than n, and n in a stream.
        ("best_of", "invalid_value"),
        # 0 only with `echo`.
        ("max_tokens", "invalid_value"),
        # Text without tokens; or too many answers to all prompts.
        (r"prompt(\[\d+\])?", "invalid_value"),
    },
    "/v1/responses": {
        *(*_ANSWER, *_ENGINE),
        # What the chat template refuses.
        ("input", "invalid_value"),
        # No grammar is made of it.
        (r"text\.format(\.schema.*)?", "invalid_value"),
    },
    "/tokenize": {("prompt|messages", "context_length_exceeded"), ("messages", "invalid_value")},
}
"""Of each path the regular expression of `param`, and `code`."""


@schemathesis.check
def valid_data_is_served(ctx: CheckContext, response: Response, case: Case[Any]) -> bool | None:
    """Fails as `positive_data_acceptance` does, but for the rules of `REFUSALS`."""
    if response.status_code == 400:
        error = response.json()["error"]
        for param, code in REFUSALS.get(case.path, ()):
            if re.fullmatch(param, error["param"] or "") and code == error["code"]:
                return None
    return positive_data_acceptance(ctx, response, case)


@schemathesis.hook
def before_load_schema(_context: Any, raw_schema: Any) -> None:
    """Takes limits away whose bodies would be huge, so that none are made at their boundaries."""
    if isinstance(raw_schema, dict):
        for keyword, most in (("maxItems", MAX_ITEMS), ("maxLength", MAX_LENGTH)):
            if isinstance(raw_schema.get(keyword), int) and raw_schema[keyword] > most:
                del raw_schema[keyword]
        raw_schema = list(raw_schema.values())
    for part in raw_schema if isinstance(raw_schema, list) else ():
        before_load_schema(_context, part)


schemathesis.openapi.format("json-object", st.sampled_from(["{}", '{"a": 1}', '{"b": [null]}']))
schemathesis.openapi.format("lark", st.sampled_from(["start: /[a-z]+/", 'start: "a" | "b"']))
