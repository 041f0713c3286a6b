"""What a JSON text holds is found before it is parsed, whatever its strings contain."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_gateway.core import json_text
from optimist_gateway.core.json_text import HEAVY, is_heavier

texts = st.text('a,"\\[]{}:\n\u00e4')
values: st.SearchStrategy[Any] = st.recursive(
    st.integers() | st.booleans() | st.none() | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=40,
)


def weight(value: Any, *, is_item: bool = False) -> int:
    """One for each value but the first of a list or object, which a comma shows."""
    own = 1 if is_item else 0
    if isinstance(value, str):
        return own + HEAVY
    if isinstance(value, list):
        return own + HEAVY + sum(weight(one, is_item=index > 0) for index, one in enumerate(value))
    if isinstance(value, dict):
        inner = (HEAVY + weight(one, is_item=index > 0) for index, one in enumerate(value.values()))
        return own + HEAVY + sum(inner)
    return own


@given(values, st.booleans(), st.integers(1, 9))
def test_the_weight_is_exact_wherever_pieces_end(value: Any, ascii_only: bool, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_PIECE_BYTES", size)
        expected = weight(value)
        assert not is_heavier(text, expected)
        assert not expected or is_heavier(text, expected - 1)


@given(values, st.binary(max_size=20), st.data())
def test_what_is_no_json_weighs_at_least_what_is_read_of_it(
    value: Any, rest: bytes, data: st.DataObject
) -> None:
    text = json.dumps(value).encode()
    cut = data.draw(st.integers(0, len(text)))
    weighs = weight(value)
    assert not weighs or is_heavier(text + b" " + rest, weighs - 1)
    is_heavier(text[:cut] + rest + text[cut:], 100)
