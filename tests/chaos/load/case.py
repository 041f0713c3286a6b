"""Requests of every kind, each with one right answer: greedy, or sampled with a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

from optimist_training.data.edits import Edit, unseen_edits
from tests.chaos.load.grammar import AMBIGUOUS, COSTLY, DEEP, FAILING, LARGE_BOUNDS
from tests.chaos.load.grpc_call import is_in_grpc

MODEL_NAME = "tiny-edit"
_PROPERTIES = {
    "name": {"type": "string", "maxLength": 12},
    "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
}
PERSON: dict[str, Any] = {"type": "object", "additionalProperties": False}
PERSON |= {"properties": _PROPERTIES, "required": [*_PROPERTIES]}
_SAVE = {"type": "function", "function": {"name": "save", "parameters": PERSON}}
LARGE_ANSWER = '{"text": "def main(argument):\\n    return argument"}'
LIKELY_PERSON = '{"name": "total", "age": 41, "tags": ["a", "b"]}'
_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"


Protocol = Literal["http", "grpc"]
_Make = Callable[[Edit, random.Random], tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Case:
    """A request that is asked again and again."""

    name: str
    path: str
    body: dict[str, Any]
    protocol: Protocol = "http"
    failure: str = ""
    """The right answer is an error whose message has this; empty if it is none."""

    @property
    def is_streamed(self) -> bool:
        """Whether the answer comes in chunks."""
        return bool(self.body.get("stream")) or self.protocol == "grpc"

    @property
    def undrafted(self) -> "Case":
        """The same request without drafts of any source, for a whole answer over HTTP."""
        left_out = ("prediction", "predicted_token_ids", "stream", "stream_options")
        body = {name: value for name, value in self.body.items() if name not in left_out}
        return Case(
            self.name, self.path, body | {"num_speculative_tokens": 0}, failure=self.failure
        )

    @property
    def is_sampled(self) -> bool:
        """Whether the answer is drawn, if with a seed."""
        return "seed" in self.body

    @property
    def kind(self) -> str:
        """Such as `plain streamed`."""
        way = "streamed" if self.is_streamed else "whole"
        return f"{self.name.rpartition('-')[0]} {'grpc' if self.protocol == 'grpc' else way}"


def make_cases(
    count: int, seed: int, *, predicts_all: bool = False, is_harsh: bool = False
) -> list[Case]:
    """Returns requests of all kinds in turn; the same for the same arguments.

    Args:
        count: How many.
        seed: Of what is drawn.
        predicts_all: Whether those have a prediction too that have none by themselves.
        is_harsh: Whether some come over gRPC, have grammars that ask much, or have to fail.
    """
    rng = random.Random(f"cases {seed}")
    # Also few requests have all of the harsh ones.
    kinds = cycle(((_HARSH_KINDS if is_harsh else {}) | _KINDS).items())
    cases: list[Case] = []
    for edit in unseen_edits(count, seed):
        kind, make = next(kinds)
        path, body = make(edit, rng)
        body |= {"model": MODEL_NAME, "return_token_ids": True}
        if predicts_all:
            body.setdefault("prediction", {"type": "content", "content": edit.before})
        is_streamed = rng.random() < 0.7
        protocol: Protocol = "http"
        if is_harsh and rng.random() < 0.4 and is_in_grpc(body):
            protocol = "grpc"
        elif is_streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        failure = _FAILURES.get(kind, "")
        cases.append(Case(f"{kind}-{len(cases)}", path, body, protocol, failure))
    return cases


def _chat(edit: Edit, prediction: str | None = None, **fields: Any) -> tuple[str, dict[str, Any]]:
    body = {"messages": edit.messages(), "temperature": 0, "max_tokens": 300} | fields
    if prediction is not None:
        body["prediction"] = {"type": "content", "content": prediction}
    return _CHAT, body


def _sampling(rng: random.Random) -> dict[str, Any]:
    return {"temperature": rng.choice([0.8, 2.0]), "top_p": 0.95, "seed": rng.randrange(2**31)}


def _completion(edit: Edit, **fields: Any) -> tuple[str, dict[str, Any]]:
    return _COMPLETIONS, {"prompt": edit.before, "temperature": 0, "max_tokens": 96} | fields


def _person(**fields: Any) -> dict[str, Any]:
    return _json(PERSON) | fields


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
    return {"response_format": form, "max_tokens": 120}


def _lark(grammar: str, **fields: Any) -> dict[str, Any]:
    return {"structured_outputs": {"grammar": grammar}, "max_tokens": 60} | fields


def _choice(*texts: str) -> dict[str, Any]:
    return {"structured_outputs": {"choice": [*texts]}, "max_tokens": 60}


_KINDS: dict[str, _Make] = {
    "half_right": lambda edit, _: _chat(edit, edit.before),
    "plain": lambda edit, _: _chat(edit),
    "schema": lambda edit, _: _chat(edit, **_person()),
    "completion": lambda edit, _: _completion(edit),
    "right": lambda edit, _: _chat(edit, edit.after),
    "sampled": lambda edit, rng: _chat(edit, **_sampling(rng)),
    "logprobs": lambda edit, _: _chat(edit, logprobs=True, top_logprobs=2),
    "sampled_choices": lambda edit, rng: _chat(edit, edit.before, n=3, **_sampling(rng)),
    "stop_string": lambda edit, _: _chat(edit, stop=["return", "raise"]),
    "wrong": lambda edit, _: _chat(edit, "It is a truth universally acknowledged.\n" * 8),
    "sampled_schema": lambda edit, rng: _chat(edit, LIKELY_PERSON, **_person(**_sampling(rng))),
    "echo_logprobs": lambda edit, _: _completion(edit, echo=True, logprobs=1, max_tokens=48),
    "completion_choices": lambda edit, rng: _completion(edit, n=2, **_sampling(rng)),
    "tools": lambda edit, _: _chat(edit, tools=[_SAVE], tool_choice="required"),
    "provenance": lambda edit, _: _chat(edit, edit.before, include_provenance=True),
    "long": lambda edit, _: _completion(edit, max_tokens=400, ignore_eos=True),
}
_HARSH_KINDS: dict[str, _Make] = {
    "large_bounds": lambda edit, _: _chat(edit, LARGE_ANSWER, **_json(LARGE_BOUNDS)),
    "ambiguous": lambda edit, _: _chat(edit, edit.before, **_lark(AMBIGUOUS)),
    "deep": lambda edit, _: _chat(edit, "((((a))))", **_lark(DEEP)),
    "failing_grammar": lambda edit, _: _chat(edit, "abc" * 20, **_lark(FAILING)),
    "costly_grammar": lambda edit, _: _chat(
        edit, "abc" * 20, **_lark(COSTLY, min_tokens=100, max_tokens=120)
    ),
    "failing_min_tokens": lambda edit, _: _chat(edit, "b", **_choice("a", "b"), min_tokens=40),
}
_FAILURES = {
    "failing_grammar": "grammar",
    "costly_grammar": "grammar",
    "failing_min_tokens": "min_tokens",
}
"""What the errors of these kinds say."""
