"""The tokenizer of a model directory; texts and bytes of single tokens; templates with tools."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from optimist_common.errors import SetupError
from optimist_common.vocabulary import Vocabulary
from optimist_gateway.core.answer.spans import joined_spans
from optimist_gateway.core.error import FieldError
from optimist_gateway.text.tokenizer import Tokenizer, load_tokenizer

TOOL_USE = "additional_chat_templates/tool_use.jinja"


async def test_of_a_long_text_as_much_is_read_as_is_of_use(
    tokenizer: Tokenizer, backend: Backend
) -> None:
    text = "The quick br\u00f6wn \N{ROCKET} fox jumps. " * 2_000
    expected = backend.encode(text)
    some = await tokenizer.encode(text, add_special_tokens=False, with_spans=True, most=300)
    assert some.token_ids == expected.ids[:300]
    assert some.spans == joined_spans(expected.offsets[:300])
    assert 300 < some.num_tokens < len(expected.ids)
    assert not some.is_whole
    every = await tokenizer.encode(text, add_special_tokens=False, most=len(expected.ids))
    assert (every.token_ids, every.spans) == (expected.ids, None)
    assert await tokenizer.decode(every.token_ids) == text


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("text")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file.txt"):
        with pytest.raises(SetupError, match=str(path)) as caught:
            load_tokenizer(str(path))
        assert "\n" not in str(caught.value)


def test_every_token_is_what_the_tokenizer_decodes(backend: Backend) -> None:
    vocabulary = Vocabulary(backend)
    assert vocabulary.is_byte_level
    for token in range(backend.get_vocab_size()):
        text, token_bytes = vocabulary[token]
        assert text == backend.decode([token], skip_special_tokens=False)
        assert text == token_bytes.decode(errors="replace")
    # Tokens that the tokenizer does not have are empty, and are not remembered.
    assert vocabulary[10**6] == ("", b"")
    assert len(vocabulary) <= backend.get_vocab_size()
    other = Backend.from_str(backend.to_str())
    other.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    assert not Vocabulary(other).is_byte_level


def test_vocabularies_of_other_kinds() -> None:
    tokens = ["\N{LOWER ONE EIGHTH BLOCK}fox", "<0xE6>", "<0xE6", "東"]
    fallback = Backend(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    fallback.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()])
    fallback.add_tokens([AddedToken("<0xE7>", special=True)])
    described = [Vocabulary(fallback)[token] for token in range(5)]
    assert described[:2] == [(" fox", b" fox"), ("\ufffd", b"\xe6")]
    # What stands for no byte is text.
    assert described[2:] == [(one, one.encode()) for one in ("<0xE6", "東", "<0xE7>")]
    words = Backend(models.WordPiece({"[UNK]": 0, "fox": 1, "##es": 2}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    assert [Vocabulary(words)[token][1] for token in (1, 2)] == [b" fox", b"es"]
    # Without a decoder there is a space between all.
    assert Vocabulary(Backend(models.BPE({"a": 0}, [])))[0] == (" a", b" a")


TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "Does <it> & more.", "parameters": {"type": "object"}},
}


def directory_with(template: str, model_directory: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    shutil.copytree(model_directory, directory)
    (directory / "chat_template.jinja").write_text(template)
    return directory


NAMED = {"default": "D{{ messages[0].content }}", "tool_use": "T{{ messages[0].content }}"}
AS_LIST = [{"name": name, "template": source} for name, source in NAMED.items()]


@pytest.mark.parametrize(
    ("files", "texts"),
    [
        ({"tokenizer_config.json": AS_LIST}, ("D", "T")),
        ({"chat_template.jinja": NAMED["default"]}, ("D", "D")),
        ({"chat_template.jinja": NAMED["default"], TOOL_USE: NAMED["tool_use"]}, ("D", "T")),
        ({"chat_template.json": AS_LIST}, ("D", "T")),
        ({"tokenizer_config.json": ""}, (None, None)),
        ({"chat_template.jinja": "", "chat_template.json": NAMED["default"]}, ("D", "D")),
        ({}, (None, None)),
    ],
)
async def test_templates_are_found_wherever_they_are(
    files: dict[str, Any],
    texts: tuple[str | None, str | None],
    model_directory: Path,
    tmp_path: Path,
) -> None:
    directory = directory_with("", model_directory, tmp_path)
    (directory / "chat_template.jinja").unlink()
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        if name.endswith(".json"):
            values = json.loads(path.read_text()) if path.exists() else {}
            content = json.dumps(values | {"chat_template": content})
        path.write_text(content)
    tokenizer = load_tokenizer(str(directory))
    for tools, expected in zip((None, [TOOL]), texts, strict=True):
        if expected is not None:
            text = await tokenizer.render_messages([{"role": "user", "content": "a"}], tools)
            assert text == f"{expected}a"
            continue
        with pytest.raises(FieldError, match=r"this model has no chat template.*; use /v1/compl"):
            await tokenizer.render_messages([{"role": "user", "content": "a"}], tools)


async def test_templates_that_refuse_or_are_slow(model_directory: Path, tmp_path: Path) -> None:
    slow = (
        "{% if messages[0].content == 'slow' %}"
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        "{% elif messages[0].content == 'bad' %}{{ raise_exception('begin with a user') }}"
        "{% elif messages[0].role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}{{ messages[0].content }}"
    )
    directory = directory_with(slow, model_directory, tmp_path)
    limited = load_tokenizer(str(directory), template_seconds=1.0)
    try:
        for content, error in (("bad", "begin with a user"), ("slow", "longer than 1 seconds")):
            with pytest.raises(FieldError, match=error):
                await limited.render_messages([{"role": "user", "content": content}])
        question = {"role": "user", "content": "quick"}
        assert await limited.render_messages([question]) == "quick"
        system = {"role": "system", "content": "Be"}
        assert await limited.render_messages([system, question]) == "Be\n\nquick"
    finally:
        await limited.stop()
