"""A draft model whose token ids mean something else is refused."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimist_common.errors import SetupError
from optimist_worker.model.tokenizer import check_same_tokenizer
from tests.stack import BUNDLED_MODEL as TARGET

Change = Callable[[dict[str, Any]], None]


def draft_with(path: Path, change: Change) -> str:
    content = json.loads((TARGET / "tokenizer.json").read_text())
    change(content)
    (path / "tokenizer.json").write_text(json.dumps(content))
    return str(path)


def test_same_vocabulary_passes_whatever_the_file_says_besides(tmp_path: Path) -> None:
    how = {"direction": "Right", "strategy": "LongestFirst", "max_length": 9, "stride": 0}
    draft = draft_with(tmp_path, lambda content: content.update(truncation=how))
    check_same_tokenizer(str(TARGET), str(TARGET))
    check_same_tokenizer(str(TARGET), draft)


def swap_tokens(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    vocab["import"], vocab["return"] = vocab["return"], vocab["import"]


def add_token(content: dict[str, Any]) -> None:
    content["added_tokens"].append({**content["added_tokens"][-1], "id": 2048, "content": "<new>"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swap_tokens, "is 'import' and not 'return'|is 'return' and not 'import'"),
        (add_token, r"token 2048 is '<new>' \(special\) and not missing"),
        (
            lambda content: content["added_tokens"][0].update(special=False),
            r"token 0 is ('.*') and not \1 \(special\)",
        ),
        (
            lambda content: content["model"].update(type="nonesuch"),
            r"tokenizer\.json: .* cannot read its model",
        ),
    ],
    ids=["swapped", "added", "plain", "damaged"],
)
def test_every_difference_is_refused(change: Change, words: str, tmp_path: Path) -> None:
    draft = draft_with(tmp_path, change)
    with pytest.raises(SetupError, match=words) as refusal:
        check_same_tokenizer(str(TARGET), draft)
    assert str(refusal.value).startswith("--drafter-model: ")


def test_models_without_tokenizers_cannot_be_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_same_tokenizer(str(tmp_path), str(tmp_path))
    assert "has a tokenizer to compare" in caplog.text
    words = f"{tmp_path} has no tokenizer and {TARGET} has one"
    for pair in ((tmp_path, TARGET), (TARGET, tmp_path)):
        with pytest.raises(SetupError, match=words):
            check_same_tokenizer(str(pair[0]), str(pair[1]))
