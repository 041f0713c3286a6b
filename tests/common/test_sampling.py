"""Sampling parameters: what is wrong is named, and what is sent comes back."""

import math
import sys
from array import array
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist.common.v1 import sampling_pb2
from optimist_common.columns import array_from_bytes, floats_to_bytes, from_bytes, to_bytes
from optimist_common.sampling import MAX_GRAMMAR_BYTES, SamplingParams
from optimist_common.sampling_message import read_sampling, write_sampling

FAULTS: dict[str, list[object]] = {
    "temperature": [-0.1, math.inf],
    "top_k": [-1],
    "top_p": [1.5, -0.5],
    "min_p": [math.nan, 1.1],
    "repetition_penalty": [-1.0, 0.0],
    "presence_penalty": [math.nan],
    "frequency_penalty": [-math.inf],
    "logit_bias": [{-1: 1.0}, {50: 1.0}, {5: math.nan}, {5: math.inf}],
    "grammar": ["x" * (MAX_GRAMMAR_BYTES + 1), "ä" * (MAX_GRAMMAR_BYTES // 2 + 1)],
    "num_logprobs": [-1, 21],
    "num_prompt_logprobs": [-1, 21],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in FAULTS.items() for value in values]
)
def test_faults_name_their_field(field: str, value: object) -> None:
    fault = replace(SamplingParams(), **{field: value}).fault(50)  # type: ignore[arg-type]
    assert fault is not None
    assert field in fault


def test_sound_parameters_have_no_fault() -> None:
    params = SamplingParams(0.7, 40, 0.9, 0.1, -5, 1.1, -2.0, 2.0, {0: -math.inf, 49: 100.0})
    constrained = SamplingParams(grammar="x" * MAX_GRAMMAR_BYTES)
    greedy = SamplingParams(top_k=5, top_p=0.5)
    shown = SamplingParams(num_logprobs=20, num_prompt_logprobs=0)
    for each in (params, constrained, greedy, shown):
        assert each.fault(50) is None
        assert each.takes_argmax == (each in (greedy, shown))
        assert each.wants_logprobs == (each is shown)


def test_each_field_is_sent() -> None:
    default = SamplingParams()
    bias, least_seed = {1: 0.5, 49: -100.0}, -(2**63)
    other = SamplingParams(0.5, 7, 0.5, 0.25, least_seed, 1.5, -2.0, 2.0, bias, "start: /ä/", 0, 20)
    for field in fields(SamplingParams):
        assert getattr(other, field.name) != getattr(default, field.name), field.name
        params = replace(default, **{field.name: getattr(other, field.name)})
        assert read_sampling(write_sampling(params)) == params
    assert read_sampling(sampling_pb2.SamplingParams()) == default


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.sampled_from(["little", "big"]))
def test_columns_are_little_endian_on_every_machine(values: list[int], order: str) -> None:
    data, swapped = to_bytes(values), array("i", values)
    assert from_bytes(data).tolist() == values
    assert data == b"".join(value.to_bytes(4, "little", signed=True) for value in values)
    if order != sys.byteorder:
        swapped.byteswap()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "byteorder", order)
        assert array_from_bytes(data) == swapped
    with pytest.raises(OverflowError):
        to_bytes([*values, 2**31])


@pytest.mark.parametrize(
    ("token_ids", "values", "shown"),
    [
        (b"12345", b"", r"sampling\.logit_bias_token_ids: 5 bytes"),
        (b"", floats_to_bytes([1.0]), r"sampling\.logit_bias_values: 1 values for 0 token ids"),
    ],
)
def test_columns_that_are_none_are_named(token_ids: bytes, values: bytes, shown: str) -> None:
    message = sampling_pb2.SamplingParams(logit_bias_token_ids=token_ids, logit_bias_values=values)
    with pytest.raises(ValueError, match=shown):
        read_sampling(message)
