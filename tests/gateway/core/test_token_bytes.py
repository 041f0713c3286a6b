"""Bytes of tokens by the kind of their vocabulary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from optimist_gateway.core.answer.detokenize import byte_fallback_bytes, byte_level_bytes
from optimist_gateway.text.tokenizer import Vocabulary


@given(st.text())
def test_byte_level_tokens_join_to_the_bytes_of_the_text(backend: Backend, text: str) -> None:
    vocabulary = Vocabulary(backend)
    described = [vocabulary.describe(token) for token in backend.encode(text).ids]
    assert b"".join(token_bytes for _, token_bytes in described) == text.encode()


def test_every_token_is_what_the_tokenizer_decodes(backend: Backend) -> None:
    vocabulary = Vocabulary(backend)
    for token in range(backend.get_vocab_size()):
        text, token_bytes = vocabulary.describe(token)
        assert text == backend.decode([token], skip_special_tokens=False)
        assert text == token_bytes.decode(errors="replace")
        assert vocabulary.describe(token) == (text, token_bytes)


def test_tokens_that_the_tokenizer_does_not_have_are_empty(backend: Backend) -> None:
    assert Vocabulary(backend).describe(10**6) == ("", b"")


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("<0xE6>", b"\xe6"),
        ("\N{LOWER ONE EIGHTH BLOCK}fox", b" fox"),
        ("<0xE6", b"<0xE6"),
        ("東", "東".encode()),
    ],
)
def test_byte_fallback(token: str, expected: bytes) -> None:
    assert byte_fallback_bytes(token) == expected


def test_letters_that_stand_for_no_byte_are_text() -> None:
    assert byte_level_bytes("東") == "東".encode()
    assert byte_level_bytes("\u0120fox") == b" fox"


def test_vocabularies_of_other_kinds() -> None:
    fallback = Backend(models.BPE({"\N{LOWER ONE EIGHTH BLOCK}fox": 0, "<0xE6>": 1}, []))
    fallback.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()])
    fallback.add_tokens([AddedToken("<0xE7>", special=True)])
    vocabulary = Vocabulary(fallback)
    assert vocabulary.describe(0) == (" fox", b" fox")
    assert vocabulary.describe(1) == ("\ufffd", b"\xe6")
    assert vocabulary.describe(2) == ("<0xE7>", b"<0xE7>")
    words = Backend(models.WordPiece({"[UNK]": 0, "fox": 1, "##es": 2}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    assert Vocabulary(words).describe(1) == ("fox", b"fox")
    assert Vocabulary(Backend(models.BPE({"a": 0}, []))).describe(0) == ("a", b"a")
