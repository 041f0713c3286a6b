"""Random requests, each field valid, at its bounds or wrong in one of many ways; edits beside."""

import json
import random
from collections.abc import Sequence
from typing import Any

from optimist_training.data.edits import Edit
from tests.chaos.load.case import Case
from tests.chaos.load.client import Ending, Outcome
from tests.integration.edit import MODEL, predict

MAX_TOKENS = 48
"""Of an edit."""
JUNK: list[Any] = [None, True, -1, 0, 2**63, -(2**70), 1e308, 0.5, "", "x", "\x00", "ä" * 3000]
JUNK += [[], [None], [[]], {}, {"type": "text"}, [1, "a", {}], {"a": {"b": [1]}}]

_TEXTS = ["def f(a):\n    return a\n", "name", "\n", "日本語 🎉", "x = 1\n" * 20, "<|end|>", "{}"]
_NAME, _AGE = {"type": "string", "maxLength": 8}, {"type": "integer"}
_SCHEMA: dict[str, Any] = {"type": "object", "additionalProperties": False}
_SCHEMA |= {"properties": {"name": _NAME, "age": _AGE}, "required": ["name"]}
_RENAME = {"name": "rename", "description": "Renames.", "parameters": _SCHEMA}
_TOOL = {"type": "function", "function": _RENAME}

COMMON: dict[str, list[Any]] = {
    "temperature": [0, 0.7, 2.0, 2.1, -0.1],
    "top_p": [0.0, 0.5, 1.0, 1.5],
    "top_k": [-1, 0, 1, 40, -2],
    "min_p": [0.0, 0.3, 1.0, 1.1],
    "seed": [0, -(2**63), 2**63 - 1, 2**63],
    "presence_penalty": [-2.0, 2.0, 3],
    "frequency_penalty": [-2.0, 1.5, -3],
    "repetition_penalty": [0.1, 1.3, 10.0, 0.0],
    "logit_bias": [{}, {"5": 100, "2047": -100.0}, {"2048": 1}, {"-1": 1}, {"5": 101}, {"a": 1}],
    "stop": ["\n", ["return", "end"], ["a"] * 4, ["a"] * 5, "", ["x" * 1025]],
    "stop_token_ids": [[], [5, 6], [2048], [-1]],
    "ignore_eos": [True, False],
    "min_tokens": [0, 3, 10_000],
    "max_tokens": [1, 12, 0, 10**9],
    "n": [1, 2, 3, 0, 17, 10**6],
    "stream_options": [{"include_usage": True}, {"include_obfuscation": False}, {"x": 1}],
    "priority": [0, -5, 2**31],
    "cache_salt": ["a", "b" * 256, "b" * 257],
    "return_token_ids": [True, False],
    "include_provenance": [True, False],
    "include_speculation": [True, False],
    "num_speculative_tokens": [0, 1, 64, -1],
    "predicted_token_ids": [[1, 2, 3], [[1], [2, 3]], [], [2048], [-1], [[1], 2]],
    "prediction": [
        *({"type": "content", "content": text} for text in _TEXTS),
        [{"type": "content", "content": text} for text in _TEXTS],
        {"type": "content", "content": [{"type": "text", "text": "def f("}]},
        {"type": "other", "content": "x"},
    ],
    "user": ["me"],
    "skip_special_tokens": [True, False],
}
CHAT: dict[str, list[Any]] = {
    "max_completion_tokens": [1, 16, 0],
    "logprobs": [True, False],
    "top_logprobs": [0, 5, 20, 21],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "person", "schema": _SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}},
        {"type": "json_schema"},
    ],
    "tools": [[_TOOL], [], [_TOOL, _TOOL], [{"type": "function"}]],
    "tool_choice": ["auto", "none", "required", {"type": "function", "function": {"name": "x"}}],
    "parallel_tool_calls": [True, False],
}
COMPLETIONS: dict[str, list[Any]] = {"logprobs": [0, 1, 5, 21, -1], "echo": [True, False]}
COMPLETIONS |= {"suffix": ["x"]}


def make_requests(count: int, source: random.Random) -> list[Case]:
    """Returns requests for few tokens each, some of them wrong; every second is a chat."""
    cases: list[Case] = []
    while len(cases) < count:
        body: dict[str, Any] = {"model": MODEL, "max_tokens": source.choice([2, 8, 24])}
        if len(cases) % 2:
            fields = COMMON | CHAT
            content = source.choice([*_TEXTS, [{"type": "text", "text": "x"}]])
            body["messages"] = [{"role": "user", "content": content}]
        else:
            fields = COMMON | COMPLETIONS
            prompts = [*_TEXTS, [1, 2, 3], ["a", "b"], [[1], [2, 3]], [], [2048], ""]
            body["prompt"] = source.choice(prompts)
        for name in source.sample(sorted(fields), source.randint(0, 6)):
            is_junk = source.random() < 0.15
            body[name] = source.choice(JUNK if is_junk else fields[name])
        if source.random() < 0.05:
            body[source.choice(["messages", "prompt", "model", "unknown"])] = source.choice(JUNK)
        body["stream"] = source.random() < 0.5
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        cases.append(Case(f"random-{len(cases)}", path, body))
    return cases


def make_edit(edit: Edit, *, with_prediction: bool) -> Case:
    """Returns a request for the first tokens of an edit."""
    body = {"model": MODEL, "messages": edit.messages(), "temperature": 0}
    body |= {"max_tokens": MAX_TOKENS, "return_token_ids": True}
    body |= predict(edit.before) if with_prediction else {}
    return Case("edit", "/v1/chat/completions", body)


def check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Checks that every answer is a complete one or an error in OpenAI's form."""
    for one in outcomes:
        if one.ending is Ending.ANSWERED:
            choices = one.answer.choices.values()
            assert all(choice.finish_reason and choice.num_ends == 1 for choice in choices), one
            continue
        status, _, text = one.message.partition(": ")
        error = json.loads(text)["error"]
        # How soon a form has to end is known when it does.
        is_known = not error["message"].startswith("min_tokens: the answer has to end")
        assert 400 <= int(status) < 500 + (not is_known), one
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"]
        assert len(text) < 4096
