"""What a message holds is found before it is parsed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist.v1 import inference_pb2
from optimist_gateway.core.json_text import HEAVY
from optimist_gateway.core.wire_weight import is_heavier_message

KIND = inference_pb2.GenerateRequest.DESCRIPTOR


@given(
    st.lists(st.text(max_size=3), max_size=5),
    st.lists(st.integers(0, 2**31 - 1), max_size=9),
    st.dictionaries(st.integers(0, 9), st.floats(0, 1, width=32), max_size=5),
)
def test_fields_and_tokens_are_counted(
    texts: list[str], token_ids: list[int], bias: dict[int, float]
) -> None:
    message = inference_pb2.GenerateRequest(stop=texts, max_tokens=5)
    message.predictions.add().token_ids.ids.extend(token_ids)
    message.sampling.logit_bias.update(bias)
    data = message.SerializeToString()
    num_fields = len(texts) + 1 + 2 + bool(token_ids) + bool(bias)
    # Each entry of a mapping is a message of two fields; those that are 0 are there too.
    num_fields += 3 * len(bias)
    expected = HEAVY * num_fields + len(token_ids)
    assert not is_heavier_message(data, KIND, expected)
    assert is_heavier_message(data, KIND, expected - 1)


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x0a\x05a", b"\x80", b"\x0b", b"\xff" * 20, b"\x0d\x00"]
)
def test_what_is_broken_off_is_no_message(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"broken off|longer|unknown form"):
        is_heavier_message(data, KIND, 1000)
