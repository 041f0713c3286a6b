import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimist_common.errors import SetupError
from optimist_worker.model.tokenizer import check_same_tokenizer

TINY_EDIT = Path(__file__).parents[3] / "models" / "tiny-edit"

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.mkdir()
    shutil.copy(TINY_EDIT / "tokenizer.json", path)
    return path


def draft_with(target: Path, change: Change) -> Path:
    content = json.loads((target / "tokenizer.json").read_text())
    change(content)
    path = target.parent / "draft"
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps(content))
    return path


def test_same_vocabulary_passes_whatever_the_file_says_besides(target: Path) -> None:
    how = {"direction": "Right", "strategy": "LongestFirst", "max_length": 9, "stride": 0}
    draft = draft_with(target, lambda content: content.update(truncation=how))
    check_same_tokenizer(str(target), str(target))
    check_same_tokenizer(str(target), str(draft))


def swap_tokens(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    vocab["import"], vocab["return"] = vocab["return"], vocab["import"]


def drop_last_token(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    last = max(vocab, key=lambda token: vocab[token])
    del vocab[last]
    merges = content["model"]["merges"]
    content["model"]["merges"] = [pair for pair in merges if "".join(pair) != last]


def add_token(content: dict[str, Any]) -> None:
    content["added_tokens"].append({**content["added_tokens"][-1], "id": 2048, "content": "<new>"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swap_tokens, "is 'import' and not 'return'|is 'return' and not 'import'"),
        (drop_last_token, "token 2047 is missing and not "),
        (add_token, "token 2048 is '<new>' and not missing"),
        (
            lambda content: content["added_tokens"][0].update(special=False),
            "is special only for the target",
        ),
        (
            lambda content: content["model"].update(type="nonesuch"),
            r"tokenizer\.json cannot be read",
        ),
    ],
    ids=["swapped", "dropped", "added", "plain", "damaged"],
)
def test_every_difference_is_refused(change: Change, words: str, target: Path) -> None:
    draft = draft_with(target, change)
    with pytest.raises(SetupError, match=words) as refusal:
        check_same_tokenizer(str(target), str(draft))
    assert str(refusal.value).startswith("--drafter-model: ")


def test_models_without_tokenizers_cannot_be_compared(
    target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    with caplog.at_level(logging.WARNING):
        check_same_tokenizer(str(bare), str(bare))
    assert "has a tokenizer.json to compare" in caplog.text
    for pair in ((bare, target), (target, bare)):
        with pytest.raises(SetupError, match=f"{bare} has no tokenizer.json and {target} has one"):
            check_same_tokenizer(str(pair[0]), str(pair[1]))
