"""The tokenizer and chat template of a model directory."""

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from optimist_common.errors import SetupError
from optimist_gateway.core.error import FieldError
from optimist_gateway.core.request import Message
from optimist_gateway.text.encode import template_messages
from optimist_gateway.text.tokenizer import Tokenizer, load_tokenizer
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


@pytest.mark.parametrize("content", ["Hello", LONG])
async def test_messages_become_the_template_s_text(tokenizer: Tokenizer, content: str) -> None:
    text = await tokenizer.render_messages(template_messages([Message("developer", content)]))
    assert text == f"<|system|>{content}\n<|assistant|>"


async def test_a_template_may_refuse(tokenizer: Tokenizer) -> None:
    with pytest.raises(FieldError, match="begin with a user"):
        await tokenizer.render_messages([{"role": "assistant", "content": "Hello"}])


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
