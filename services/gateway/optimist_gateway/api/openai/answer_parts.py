"""What answers and chunks are made of: accounts, log-probabilities, and where text came from."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from optimist_gateway.core.answer.output import TokenLogprob, Usage
from optimist_gateway.core.answer.provenance import Segment
from optimist_gateway.core.answer.spans import SourceSpan

Json = dict[str, Any]


def usage_answer(usage: Usage, *, with_num_passes: bool = False) -> Json:
    """Returns the `usage` object; `num_passes` is an extension for `return_token_ids`."""
    answer: Json = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens, "audio_tokens": 0},
        "completion_tokens_details": {**_output_details(usage), "audio_tokens": 0},
    }
    if with_num_passes:
        answer["num_passes"] = usage.num_passes
    return answer


def response_usage(usage: Usage) -> Json:
    """Returns the `usage` object of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_prompt_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": _output_details(usage),
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def speculation_answer(usage: Usage) -> Json:
    """Returns the `speculation` object of a usage."""
    return {
        "num_passes": usage.num_passes,
        "num_drafted_tokens": usage.num_drafted_tokens,
        "num_accepted_tokens": usage.num_accepted_tokens,
        "acceptance_rate": usage.acceptance_rate,
        "mean_accepted_length": usage.mean_accepted_length,
        "accepted_length_histogram": list(usage.accepted_length_histogram),
    }


def _output_details(usage: Usage) -> Json:
    by_source = {source.label: count for source, count in usage.num_tokens_by_source.items()}
    return {
        "accepted_prediction_tokens": usage.accepted_prediction_tokens,
        "rejected_prediction_tokens": usage.rejected_prediction_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "tokens_by_source": by_source,
    }


_PART_TOKENS = 1024


def in_parts(tokens: Sequence[TokenLogprob], write: Callable[[Sequence[TokenLogprob]], Any]) -> Any:
    """Returns the list that is written of tokens; of many as JSON, part by part.

    To write megabytes of JSON at once would keep the interpreter for as long.
    """
    if len(tokens) <= _PART_TOKENS:
        return write(tokens)
    starts = range(0, len(tokens), _PART_TOKENS)
    parts = [orjson.dumps(write(tokens[start : start + _PART_TOKENS]))[1:-1] for start in starts]
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")


def chat_logprobs(tokens: Sequence[TokenLogprob] | None) -> Json | None:
    """Returns the `logprobs` of a choice of a chat completion, or of one of its chunks."""
    if tokens is None:
        return None
    return {"content": in_parts(tokens, token_logprobs), "refusal": None}


def token_logprobs(tokens: Sequence[TokenLogprob]) -> list[Json]:
    """Returns the objects of tokens."""
    return [
        {**_candidate(token), "top_logprobs": [_candidate(one) for one in token.top]}
        for token in tokens
    ]


def _candidate(token: TokenLogprob) -> Json:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.token_bytes)}


def completion_logprobs(tokens: Sequence[TokenLogprob] | None) -> Json | None:
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


def segment_answer(segment: Segment) -> Json:
    """Returns a part of the `provenance` of a choice or chunk."""
    answer: Json = {
        # An echoed prompt has no other source.
        "source": segment.source.label if segment.source is not None else "prompt",
        "text": segment.text,
        "num_tokens": segment.num_tokens,
    }
    span = segment.span
    if span is None:
        return answer
    if not span.is_in_prompt:
        answer["prediction"] = {"index": span.index or 0, **_span(span)}
    else:
        message = {} if span.index is None else {"message": span.index}
        answer["prompt"] = _span(span) | message
    return answer


def _span(span: SourceSpan) -> Json:
    if span.is_in_tokens:
        return {"token_start": span.start, "token_end": span.end}
    return {"start": span.start, "end": span.end}
