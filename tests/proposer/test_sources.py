import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.sources import Sources
from optimist_proposer.core.sources import name_sources, pack_sources, unpack_sources
from tests.proposer.text import texts, tokens


@given(st.lists(texts, max_size=4), texts)
def test_sources_come_back(predictions: list[str], prompt: str) -> None:
    sources = Sources([tokens(text) for text in predictions], tokens(prompt))
    other = unpack_sources(pack_sources(sources))
    assert other.token_ids == sources.token_ids
    assert other.positions == sources.positions
    assert other.num_predicted == sources.num_predicted


def test_name_tells_owners_and_texts_apart() -> None:
    one, other = (pack_sources(Sources([tokens(text)])) for text in ("one", "other"))
    names = {name_sources(tenant, value) for tenant in ("", "A", "B") for value in (one, other)}
    assert len(names) == 6
    assert name_sources("A", one) in names


def test_prompt_and_prediction_are_distinguished() -> None:
    as_prediction = pack_sources(Sources([tokens("a"), tokens("b")]))
    as_prompt = pack_sources(Sources([tokens("a")], tokens("b")))
    assert as_prediction != as_prompt


@pytest.mark.parametrize("data", [b"", b"\x01\x00\x00", b"\x09" + bytes(8), bytes(5) + b"123"])
def test_another_format_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="packed sources"):
        unpack_sources(data)


def test_source_without_an_end_is_an_error() -> None:
    packed = pack_sources(Sources([tokens("ab")]))
    with pytest.raises(ValueError, match="has no end"):
        unpack_sources(packed[:-4])
