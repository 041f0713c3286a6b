"""The tokenizer and chat template of a model directory; texts and bytes of single tokens."""

import shutil
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from optimist_common.errors import SetupError
from optimist_gateway.core.answer.detokenize import byte_fallback_bytes, byte_level_bytes
from optimist_gateway.core.error import FieldError
from optimist_gateway.text.tokenizer import (
    Tokenizer,
    TokenTexts,
    Vocabulary,
    is_byte_level,
    load_tokenizer,
)
from tests.gateway.fake_scheduler import EOS

LONG = "The quick brown fox jumps over the lazy dog. " * 200


@pytest.fixture
def with_limits(model_directory: Path, backend: Backend, tmp_path: Path) -> Tokenizer:
    """A tokenizer that begins texts with a token, and that was saved with a length limit."""
    directory = tmp_path / "limited"
    shutil.copytree(model_directory, directory)
    limited = Backend.from_str(backend.to_str())
    limited.post_processor = TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", EOS)]
    )
    limited.enable_truncation(8)
    limited.enable_padding(length=8)
    limited.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").unlink()
    return load_tokenizer(str(directory))


async def test_text_keeps_its_length_and_begins_as_the_model_wants(
    with_limits: Tokenizer, backend: Backend
) -> None:
    plain = backend.encode(LONG).ids
    assert await with_limits.encode(LONG, add_special_tokens=True) == [EOS, *plain]
    assert await with_limits.encode(LONG, add_special_tokens=False) == plain
    assert await with_limits.encode("fox", add_special_tokens=False) == backend.encode("fox").ids


async def test_a_model_without_a_template_says_so(with_limits: Tokenizer) -> None:
    with pytest.raises(FieldError, match="no chat template"):
        await with_limits.render_messages([{"role": "user", "content": "Hello"}])


def test_special_tokens_have_no_text(tokenizer: Tokenizer, backend: Backend) -> None:
    state = tokenizer.detokenizer()
    assert state.push([EOS, *backend.encode("fox").ids]) == "fox"


def test_no_token_is_longer_than_the_longest(tokenizer: Tokenizer, backend: Backend) -> None:
    longest = max(len(backend.decode([i])) for i in range(backend.get_vocab_size()))
    assert tokenizer.longest_token >= longest


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=str(tmp_path)) as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing", "file.txt"])
def test_what_is_no_directory_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("text")
    with pytest.raises(SetupError, match=name):
        load_tokenizer(str(tmp_path / name))


def test_only_byte_level_vocabularies_are_taken(backend: Backend) -> None:
    other = Backend.from_str(backend.to_str())
    assert is_byte_level(other)
    other.decoder = decoders.Metaspace()
    assert not is_byte_level(other)
    other.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    assert not is_byte_level(other)


def test_the_size_is_bounded_by_the_vocabulary(backend: Backend) -> None:
    texts = TokenTexts(backend)
    size = backend.get_vocab_size()
    assert all(texts[token] == backend.decode([token], False) for token in range(3 * size))
    assert len(texts) <= size


def test_every_token_is_what_the_tokenizer_decodes(backend: Backend) -> None:
    vocabulary = Vocabulary(backend)
    for token in range(backend.get_vocab_size()):
        text, token_bytes = vocabulary.describe(token)
        assert text == backend.decode([token], skip_special_tokens=False)
        assert text == token_bytes.decode(errors="replace")
        assert vocabulary.describe(token) == (text, token_bytes)


def test_tokens_that_the_tokenizer_does_not_have_are_empty(backend: Backend) -> None:
    assert Vocabulary(backend).describe(10**6) == ("", b"")


def test_what_stands_for_no_byte_is_text() -> None:
    assert byte_fallback_bytes("<0xE6") == b"<0xE6"
    assert byte_fallback_bytes("東") == "東".encode()
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
