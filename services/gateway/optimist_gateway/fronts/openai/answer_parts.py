"""What answers and chunks are made of: accounts, log-probabilities, and where text came from."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NotRequired, Required

import orjson
from pydantic import Field
from typing_extensions import TypedDict

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.output import MAX_COUNTED, TokenLogprob, Usage
from optimist_gateway.core.answer.provenance import Segment
from optimist_gateway.core.answer.spans import SourceSpan


class CompletionTokensDetails(TypedDict):
    """Where the tokens of the answer came from."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int | None
    reasoning_tokens: int
    audio_tokens: int
    tokens_by_source: dict[str, int]


class PromptTokensDetails(TypedDict):
    """What is known of the tokens of the prompt."""

    cached_tokens: int
    audio_tokens: int


class SpeculationAnswer(TypedDict):
    """What speculation was worth."""

    num_passes: int
    num_drafted_tokens: int | None
    num_accepted_tokens: int
    acceptance_rate: float | None
    mean_accepted_length: float | None
    accepted_length_histogram: Annotated[list[int], Field(max_length=MAX_COUNTED + 1)]


class UsageAnswer(TypedDict):
    """The account of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    num_passes: NotRequired[int]
    speculation: NotRequired[SpeculationAnswer]


class ResponseUsage(TypedDict):
    """The account of a response."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int | dict[str, int] | None]
    total_tokens: int
    speculation: NotRequired[SpeculationAnswer]


def usage_answer(usage: Usage, *, with_num_passes: bool = False) -> UsageAnswer:
    """Returns the `usage` object; `num_passes` is an extension for `return_token_ids`."""
    answer: UsageAnswer = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_prediction_tokens,
            "rejected_prediction_tokens": usage.rejected_prediction_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "tokens_by_source": _by_label(usage),
        },
    }
    if with_num_passes:
        answer["num_passes"] = usage.num_passes
    return answer


def response_usage(usage: Usage) -> ResponseUsage:
    """Returns the `usage` object of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_prompt_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_prediction_tokens,
            "rejected_prediction_tokens": usage.rejected_prediction_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "tokens_by_source": _by_label(usage),
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def speculation_answer(usage: Usage) -> SpeculationAnswer:
    """Returns the `speculation` object of a usage."""
    return {
        "num_passes": usage.num_passes,
        "num_drafted_tokens": usage.num_drafted_tokens,
        "num_accepted_tokens": usage.num_accepted_tokens,
        "acceptance_rate": usage.acceptance_rate,
        "mean_accepted_length": usage.mean_accepted_length,
        "accepted_length_histogram": list(usage.accepted_length_histogram),
    }


def _by_label(usage: Usage) -> dict[str, int]:
    return {source.label: count for source, count in usage.num_tokens_by_source.items()}


_PART_TOKENS = 1024


class CandidateLogprob(TypedDict):
    """A token, as likely as it was."""

    token: str
    logprob: float | None
    bytes: list[int]


class TokenLogprobAnswer(CandidateLogprob):
    """A token of the answer, and the likeliest ones at its position."""

    top_logprobs: list[CandidateLogprob]


class ChatLogprobs(TypedDict):
    """How likely the tokens of a message were."""

    content: list[TokenLogprobAnswer]
    refusal: None


class CompletionLogprobs(TypedDict):
    """How likely the tokens of a text were."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def join_logprobs(pieces: Sequence[Piece]) -> list[TokenLogprob] | None:
    """Returns those of all tokens of a choice; None if they are not wanted."""
    if all(piece.logprobs is None for piece in pieces):
        return None
    return [token for piece in pieces for token in piece.logprobs or ()]


def in_parts(tokens: Sequence[TokenLogprob], write: Callable[[Sequence[TokenLogprob]], Any]) -> Any:
    """Returns the list that is written of tokens; of many as JSON, part by part.

    To write megabytes of JSON at once would keep the interpreter for as long.
    """
    if len(tokens) <= _PART_TOKENS:
        return write(tokens)
    starts = range(0, len(tokens), _PART_TOKENS)
    parts = [orjson.dumps(write(tokens[start : start + _PART_TOKENS]))[1:-1] for start in starts]
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")


def chat_logprobs(tokens: Sequence[TokenLogprob] | None) -> ChatLogprobs | None:
    """Returns the `logprobs` of a choice of a chat completion, or of one of its chunks."""
    if tokens is None:
        return None
    return {"content": in_parts(tokens, token_logprobs), "refusal": None}


def token_logprobs(tokens: Sequence[TokenLogprob]) -> list[TokenLogprobAnswer]:
    """Returns the objects of tokens."""
    return [
        {**_candidate(token), "top_logprobs": [_candidate(one) for one in token.top]}
        for token in tokens
    ]


def _candidate(token: TokenLogprob) -> CandidateLogprob:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.token_bytes)}


def completion_logprobs(tokens: Sequence[TokenLogprob] | None) -> CompletionLogprobs | None:
    """Returns the `logprobs` of a choice of a completion, or of one of its chunks."""
    if tokens is None:
        return None
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": in_parts(tokens, lambda some: [_by_text(token) for token in some]),
        "text_offset": [token.text_offset for token in tokens],
    }


def _by_text(token: TokenLogprob) -> dict[str, float] | None:
    """Returns the likeliest tokens and the token itself; of equal texts the likeliest one."""
    if token.logprob is None:
        return None
    by_text: dict[str, float] = {}
    for one in (*token.top, token):
        if one.logprob is not None:
            by_text.setdefault(one.text, one.logprob)
    return by_text


PROMPT = "prompt"
"""Source of an echoed prompt."""


class _Span(TypedDict, total=False):
    start: int
    end: int
    token_start: int
    token_end: int


class PredictionSpan(_Span):
    """Where a segment is in a prediction."""

    index: Required[int]


class PromptSpan(_Span):
    """Where a segment is in the prompt."""

    message: NotRequired[int]


class SegmentAnswer(TypedDict):
    """Text of one source."""

    source: str
    text: str
    num_tokens: int
    prediction: NotRequired[PredictionSpan]
    prompt: NotRequired[PromptSpan]


def provenance(segments: Sequence[Segment]) -> list[SegmentAnswer]:
    """Returns the `provenance` of a choice or chunk."""
    return [_segment(segment) for segment in segments]


def _segment(segment: Segment) -> SegmentAnswer:
    answer: SegmentAnswer = {
        "source": segment.source.label if segment.source is not None else PROMPT,
        "text": segment.text,
        "num_tokens": segment.num_tokens,
    }
    span = segment.span
    if span is None:
        return answer
    if not span.is_in_prompt:
        answer["prediction"] = {"index": span.index or 0, **_span(span)}
    else:
        found: PromptSpan = {**_span(span)}  # type: ignore[typeddict-item]
        if span.index is not None:
            found["message"] = span.index
        answer["prompt"] = found
    return answer


def _span(span: SourceSpan) -> _Span:
    if span.is_in_tokens:
        return {"token_start": span.start, "token_end": span.end}
    return {"start": span.start, "end": span.end}
