from dataclasses import replace
from typing import Any

import pytest

from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.limits import Limits
from optimist_scheduler.core.output import FinishReason, RejectionError
from optimist_scheduler.core.validate import NewRequest, build_request

LIMITS = Limits(
    vocab_size=50,
    max_model_len=64,
    block_size=4,
    num_blocks=10,
    max_num_seqs=4,
    max_num_batched_tokens=16,
    max_num_waiting=8,
    num_speculative_tokens=4,
)


def request(**values: Any) -> NewRequest:
    return NewRequest(**{"request_id": "r", "prompt_token_ids": [1], "max_tokens": 1, **values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"request_id": ""}, "request_id: must have 1 to 256 characters, not 0"),
        ({"request_id": "r" * 257}, "request_id: must have 1 to 256 characters, not 257"),
        ({"prompt_token_ids": []}, "prompt_token_ids: must not be empty"),
        ({"prompt_token_ids": [1] * 64}, "prompt_token_ids: must be at most 63 tokens for this"),
        ({"prompt_token_ids": [1] * 40}, "prompt_token_ids: must be at most 39 tokens for the KV"),
        ({"prompt_token_ids": [50]}, "prompt_token_ids: must be from 0 to 49"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids: must be from 0 to 49"),
        ({"predicted_token_ids": [50]}, "predicted_token_ids: must be from 0 to 49"),
        ({"predicted_token_ids": [1] * 262_145}, "predicted_token_ids: must be at most 262144"),
        ({"stop_token_ids": [50]}, "stop_token_ids: must be from 0 to 49"),
        ({"max_tokens": 0}, "max_tokens: must be at least 1, not 0"),
        ({"min_tokens": -1}, "min_tokens: must be at least 0, not -1"),
    ],
)
def test_a_request_that_can_never_run_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RejectionError) as caught:
        build_request(request(**values), LIMITS)
    assert str(caught.value).startswith(message)
    assert caught.value.finished.reason is FinishReason.REFUSED


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -0.5}, "temperature must be at least 0, not -0.5"),
        ({"top_p": 1.5}, "top_p must be"),
        ({"logit_bias": {50: 1.0}}, "logit_bias: token id 50"),
    ],
)
def test_sampling_out_of_range_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RejectionError) as caught:
        build_request(request(sampling=SamplingParams(**values)), LIMITS)
    assert str(caught.value).startswith(f"sampling.{message}")


def test_the_longest_prompt_runs_and_ends_at_the_memory_limit() -> None:
    built = build_request(request(prompt_token_ids=[1] * 39, max_tokens=9), LIMITS)
    assert built.max_length == 40
    larger = replace(LIMITS, num_blocks=100)
    built = build_request(request(prompt_token_ids=[1] * 39, max_tokens=99), larger)
    assert built.max_length == 64
