"""An answer as a client has it in the end, and what differs between two."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from optimist_client import Step

Logprob = tuple[str, float | None]
"""A token with its logarithm; None for a prompt's first."""


@dataclass
class Choice:
    """One of n answers."""

    text: str = ""
    """Calls of tools follow it, each with its name and arguments."""
    provenance: str = ""
    """The texts of its segments."""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[Logprob] = field(default_factory=list)
    """Of each token that came with one, and of its alternatives."""
    num_ends: int = 0
    """How often an end came."""


@dataclass(frozen=True)
class Failure:
    """An error that the server answered, or with which it ended a stream."""

    code: str
    """A word for programs."""
    message: str

    def is_like(self, other: "Failure") -> bool:
        """Tells whether both are of one kind and say the same, whichever front they came through.

        Of several choices that fail, any may be the first; each API calls a field by other names.
        """
        return self.code == other.code and self._reason == other._reason

    @property
    def _reason(self) -> str:
        return re.sub(r"^(choice \d+: )?([\w.\[\]]+: )?", "", self.message)


@dataclass
class Answer:
    """All choices of a request, whole or as far as they were streamed."""

    choices: dict[int, Choice] = field(default_factory=dict)
    completion_tokens: int | None = None
    failure: Failure | None = None
    """The error that came instead, or that ended it."""

    def take(self, body: dict[str, Any]) -> bool:
        """Adds an answer or a chunk of one; tells whether it brought tokens or an end."""
        usage = body.get("usage")
        if usage is not None:
            self.completion_tokens = usage["completion_tokens"]
        is_news = False
        for part in body["choices"]:
            choice = self.choices.setdefault(part["index"], Choice())
            message = part.get("delta") or part.get("message") or {"content": part.get("text")}
            token_ids = part.get("token_ids") or []
            choice.text += message.get("content") or ""
            for call in message.get("tool_calls") or []:
                choice.text += (call["function"].get("name") or "") + call["function"]["arguments"]
            choice.provenance += "".join(one["text"] for one in part.get("provenance") or [])
            choice.token_ids += token_ids
            choice.logprobs += _logprobs(part.get("logprobs"))
            if part.get("finish_reason") is not None:
                choice.finish_reason = part["finish_reason"]
                choice.num_ends += 1
            is_news |= bool(token_ids) or part.get("finish_reason") is not None
        return is_news

    def take_step(self, step: Step) -> None:
        """Adds what came over gRPC."""
        choice = self.choices.setdefault(step.index, Choice())
        choice.text += step.text
        choice.provenance += "".join(segment.text for segment in step.segments)
        choice.token_ids += step.token_ids
        either = [each for one in step.logprobs for each in (one, *one.top)]
        choice.logprobs += [(one.text, one.logprob) for one in either]
        if step.finish_reason is not None:
            choice.finish_reason = step.finish_reason
            choice.num_ends += 1

    @property
    def is_complete(self) -> bool:
        """Whether every choice that began has ended, and the usage has come."""
        ended = all(choice.num_ends for choice in self.choices.values())
        return bool(self.choices) and ended and self.completion_tokens is not None


@dataclass(frozen=True)
class Promise:
    """What a fleet promises of answers to one request."""

    tolerance: float = 1e-5
    """By how much logarithms may differ: in the last digits of a float32."""
    repeats_samples: bool = True
    """Whether a seed and a prompt are an answer, wherever it is computed."""


SAME_ENGINE = Promise()
SEVERAL_ENGINES = Promise(tolerance=1e-3, repeats_samples=False)


def difference(got: Answer, expected: Answer, tolerance: float = SAME_ENGINE.tolerance) -> str:
    """Says what differs first; empty if nothing does but logarithms by no more than tolerated.

    Of two that failed, how much had come before may differ.
    """
    if got.failure or expected.failure:
        is_like = got.failure and expected.failure and got.failure.is_like(expected.failure)
        return "" if is_like else f"{_ending(got)}, expected {_ending(expected)}"
    if sorted(got.choices) != sorted(expected.choices):
        return f"choices {sorted(got.choices)}, expected {sorted(expected.choices)}"
    for index, choice in got.choices.items():
        other = expected.choices[index]
        for name in ("token_ids", "text", "provenance", "finish_reason", "num_ends"):
            mine, right = getattr(choice, name), getattr(other, name)
            if mine != right:
                return f"choice {index}: {name} {mine!r}, expected {right!r}"
        if differing := _first_difference(choice.logprobs, other.logprobs, tolerance):
            return f"choice {index}: logprobs: {differing}"
    if got.completion_tokens != expected.completion_tokens:
        return f"completion_tokens {got.completion_tokens}, expected {expected.completion_tokens}"
    return ""


def fault_of_sample(got: Answer, expected: Answer) -> str:
    """Says what is wrong with an answer that may be another one than expected; empty if nothing."""
    if sorted(got.choices) != sorted(expected.choices):
        return f"choices {sorted(got.choices)}, expected {sorted(expected.choices)}"
    for index, choice in got.choices.items():
        if choice.num_ends != 1 or not choice.token_ids:
            return f"choice {index}: {choice.num_ends} ends, {len(choice.token_ids)} tokens"
    num_tokens = sum(len(choice.token_ids) for choice in got.choices.values())
    if got.completion_tokens != num_tokens:
        return f"completion_tokens {got.completion_tokens}, and {num_tokens} came"
    return ""


def is_beginning(got: Answer, expected: Answer) -> bool:
    """Tells whether all that was streamed so far is how the expected answer begins.

    Of an answer that fails nothing is known but the error.
    """
    return expected.failure is not None or all(
        index in expected.choices
        and expected.choices[index].text.startswith(choice.text)
        and expected.choices[index].token_ids[: len(choice.token_ids)] == choice.token_ids
        for index, choice in got.choices.items()
    )


def has_duplicates(got: Answer, expected: Answer) -> bool:
    """Tells whether a choice has all its tokens in their order, and more: some came twice."""
    return any(
        len(choice.token_ids) > len(expected.choices[index].token_ids)
        and _is_subsequence(expected.choices[index].token_ids, choice.token_ids)
        for index, choice in got.choices.items()
        if index in expected.choices
    )


def _ending(answer: Answer) -> str:
    return str(answer.failure or {i: one.finish_reason for i, one in answer.choices.items()})


def _is_subsequence(wanted: Iterable[int], tokens: Iterable[int]) -> bool:
    rest = iter(tokens)
    return all(token in rest for token in wanted)


def _logprobs(received: dict[str, Any] | None) -> list[Logprob]:
    if not received:
        return []
    if "content" in received:
        tokens = received["content"] or []
        either = [each for one in tokens for each in (one, *one["top_logprobs"])]
        return [(each["token"], each["logprob"]) for each in either]
    names = ("tokens", "token_logprobs", "top_logprobs")
    # In the order of tokens, whichever of them came in one chunk.
    return [
        pair
        for token, logprob, top in zip(*(received[name] for name in names), strict=True)
        for pair in ((token, logprob), *sorted((top or {}).items()))
    ]


def _first_difference(got: list[Logprob], expected: list[Logprob], tolerance: float) -> str:
    """Says where logarithms differ first; empty if nowhere by more than tolerated."""
    if len(got) != len(expected):
        return f"{len(got)}, expected {len(expected)}"
    for position, (mine, right) in enumerate(zip(got, expected, strict=True)):
        if mine[0] != right[0] or not _is_close(mine[1], right[1], tolerance):
            return f"{mine} at {position}, expected {right}"
    return ""


def _is_close(mine: float | None, right: float | None, tolerance: float) -> bool:
    if mine is None or right is None:
        return mine is right
    return math.isclose(mine, right, rel_tol=tolerance, abs_tol=tolerance)
