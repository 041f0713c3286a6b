"""Which requests are refused, and why."""

from typing import Any

import pytest

from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.base.values import FinishReason, RejectionError
from optimist_scheduler.core.requests.request import NewRequest, build_request
from tests.scheduler.situation import config

BOUNDS = config(num_blocks=10)
SAMPLINGS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.5}, "temperature must be at least 0, not -0.5"),
    ({"top_p": 1.5}, "top_p must be"),
    ({"logit_bias": {50: 1.0}}, "logit_bias: token id 50"),
    ({"num_logprobs": 21}, "num_logprobs must be in 0 to 20, not 21"),
    ({"num_prompt_logprobs": -1}, "num_prompt_logprobs must be in 0 to 20, not -1"),
]


def request(**values: Any) -> NewRequest:
    return NewRequest(**{"request_id": "r", "prompt_token_ids": [1], "max_tokens": 1, **values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"request_id": ""}, "request_id: must have 1 to 256 characters, not 0"),
        ({"prompt_token_ids": []}, "prompt_token_ids: must not be empty"),
        ({"prompt_token_ids": [1] * 64}, "prompt_token_ids: must be at most 63 tokens for this"),
        ({"prompt_token_ids": [1] * 40}, "prompt_token_ids: must be at most 39 tokens for the KV"),
        ({"prompt_token_ids": [50]}, "prompt_token_ids: must be from 0 to 49"),
        ({"predicted_token_ids": [50]}, "predicted_token_ids: must be from 0 to 49"),
        ({"predicted_token_ids": [1] * 262_145}, "predicted_token_ids: must be at most 262144"),
        (
            {"predicted_token_ids": [1, 2, 3], "num_predicted_tokens": [1, 1]},
            "num_predicted_tokens: must add up to the 3 predicted_token_ids, not to 2",
        ),
        (
            {"predicted_token_ids": [1, 2], "num_predicted_tokens": [2, 0]},
            "num_predicted_tokens: each must be at least 1, not 0",
        ),
        (
            {"predicted_token_ids": [1] * 17, "num_predicted_tokens": [1] * 17},
            "num_predicted_tokens: must be at most 16, not 17",
        ),
        ({"stop_token_ids": [50]}, "stop_token_ids: must be from 0 to 49"),
        ({"max_tokens": 0}, "max_tokens: must be at least 1, not 0"),
        ({"min_tokens": -1}, "min_tokens: must be at least 0, not -1"),
        ({"output_token_ids": [50], "max_tokens": 2}, "output_token_ids: must be from 0 to 49"),
        (
            {"output_token_ids": [1, 2], "max_tokens": 2},
            "output_token_ids: must be fewer than max_tokens (2), not 2",
        ),
        (
            {"prompt_token_ids": [1] * 20, "output_token_ids": [1] * 20, "max_tokens": 30},
            "prompt_token_ids: must be at most 39 tokens for the KV memory of the worker, not 40",
        ),
        ({"priority": 2**30 + 1}, "priority: must be from -1073741824 to 1073741824, not"),
        ({"cache_salt": "\u00e4" * 129}, "cache_salt: must be at most 256 bytes"),
        ({"max_draft_tokens": -1}, "max_draft_tokens: must be at least 0, not -1"),
        ({"priority": 7}, "priority: must be 0 with the policy fcfs, not 7"),
        *(
            ({"sampling": SamplingParams(**sampling)}, f"sampling.{message}")
            for sampling, message in SAMPLINGS
        ),
    ],
)
def test_a_request_that_can_never_run_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RejectionError) as caught:
        build_request(request(**values), BOUNDS)
    assert str(caught.value).startswith(message)
    assert caught.value.finished.reason is FinishReason.REFUSED


def test_the_longest_prompt_runs_and_ends_at_the_memory_limit() -> None:
    built = build_request(request(prompt_token_ids=[1] * 39, max_tokens=9), BOUNDS)
    assert built.max_length == 40
    larger = config(num_blocks=100)
    built = build_request(request(prompt_token_ids=[1] * 39, max_tokens=99), larger)
    assert built.max_length == 64
