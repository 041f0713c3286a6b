import json
from pathlib import Path

import pytest

from optimist_common.errors import SetupError
from optimist_proposer.service import load_vocabulary


def write_tokenizer(directory: Path, vocabulary: list[str]) -> str:
    """Writes a byte-level tokenizer in which Ċ stands for a newline and Ġ for a space."""
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(vocabulary)},
            "merges": [],
        },
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8"
    )
    return str(directory)


def test_texts_of_a_vocabulary(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path, ["a", "Ċ", "Ġ", "ĊĠĠ", ";Ċ", "č", "n"])
    vocabulary = load_vocabulary(model)
    assert vocabulary.token_texts == ("a", "\n", " ", "\n  ", ";\n", "\r", "n")
    assert vocabulary.newline_token_ids == {1, 3, 4}


def test_missing_directory_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--model: no directory"):
        load_vocabulary(str(tmp_path / "absent"))


def test_directory_without_tokenizer_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--model: cannot load a tokenizer") as info:
        load_vocabulary(str(tmp_path))
    assert "\n" not in str(info.value)


def test_vocabulary_without_newline_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="ends a line"):
        load_vocabulary(write_tokenizer(tmp_path, ["a", "b"]))
