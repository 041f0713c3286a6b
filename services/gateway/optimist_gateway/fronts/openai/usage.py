"""The account of a request, as the endpoints have it."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from optimist_gateway.core.answer.speculation import MAX_COUNTED, Speculation
from optimist_gateway.core.answer.usage import Usage


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
            "reasoning_tokens": 0,
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
            "reasoning_tokens": 0,
            "tokens_by_source": _by_label(usage),
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def speculation_answer(speculation: Speculation) -> SpeculationAnswer:
    """Returns the `speculation` object of a usage."""
    return {
        "num_passes": speculation.num_passes,
        "num_drafted_tokens": speculation.num_drafted_tokens,
        "num_accepted_tokens": speculation.num_accepted_tokens,
        "acceptance_rate": speculation.acceptance_rate,
        "mean_accepted_length": speculation.mean_accepted_length,
        "accepted_length_histogram": list(speculation.accepted_length_histogram),
    }


def _by_label(usage: Usage) -> dict[str, int]:
    return {source.label: count for source, count in usage.num_tokens_by_source.items()}
