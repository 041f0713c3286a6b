"""Texts of single tokens, which join to those of sequences."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend

from optimist_gateway.core.answer.detokenize import REPLACEMENT
from optimist_gateway.text.tokenizer import Tokenizer, TokenTexts, is_byte_level


def test_only_byte_level_vocabularies_are_taken(backend: Backend) -> None:
    other = Backend.from_str(backend.to_str())
    assert is_byte_level(other)
    other.decoder = decoders.Metaspace()
    assert not is_byte_level(other)
    other.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    assert not is_byte_level(other)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ids=st.lists(st.integers(0, 540), max_size=12))
def test_texts_join_to_the_decoded_whole(backend: Backend, ids: list[int]) -> None:
    extended = Backend.from_str(backend.to_str())
    extended.add_tokens(["  two spaces", "東京 タワー", AddedToken("\n\n\n", normalized=False)])
    extended.add_special_tokens(["<|mark|>", "<|ä €|>"])
    texts = TokenTexts(extended)
    text = "".join(texts[token] for token in ids)
    if REPLACEMENT not in text:
        assert text == extended.decode(ids, skip_special_tokens=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ids=st.lists(st.integers(0, 511), max_size=12))
async def test_decoding_is_that_of_the_tokenizer(
    tokenizer: Tokenizer, backend: Backend, ids: list[int]
) -> None:
    assert await tokenizer.decode(ids) == backend.decode(ids, skip_special_tokens=False)


def test_the_size_is_bounded_by_the_vocabulary(backend: Backend) -> None:
    texts = TokenTexts(backend)
    size = backend.get_vocab_size()
    assert all(texts[token] == backend.decode([token], False) for token in range(3 * size))
    assert len(texts) <= size
