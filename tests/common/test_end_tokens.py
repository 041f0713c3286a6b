"""Which tokens end a text, by all files that may say so together."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from optimist_common.errors import SetupError
from optimist_common.model_files.end_tokens import read_end_tokens
from optimist_worker.model.model import load_model
from tests.damage import CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, change, make_model

VOCAB_SIZE = 320


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def name(model: Path, generation: Any = ..., config: Any = ..., token: Any = ...) -> Path:
    """Has files name ends; ... for a file that names none."""
    change(GENERATION, eos_token_id=generation)(model)
    change(CONFIG, eos_token_id=config)(model)
    change(TOKENIZER_CONFIG, eos_token=token)(model)
    return model


def test_a_turn_may_end_by_a_token_that_the_tokenizer_alone_names(model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / TOKENIZER))
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.save(str(model / TOKENIZER))
    name(model, config=2, token="<|im_end|>")
    expected = [2, tokenizer.token_to_id("<|im_end|>")]
    assert load_model(str(model), "float32", "cpu").eos_token_ids == expected
    # In a config of several parts the decoder's has its own.
    text = json.loads((model / CONFIG).read_text()) | {"eos_token_id": 9}
    (model / CONFIG).write_text(json.dumps({"eos_token_id": 8, "text_config": text}))
    found = read_end_tokens(str(model), "--model", VOCAB_SIZE)
    assert set(found) == {8, 9, tokenizer.token_to_id("<|im_end|>")}


def test_unknown_tokens_are_dropped_with_a_line_in_the_log(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are in files that were written for a larger vocabulary."""
    name(model, generation=[2, 99999])
    for file in (TOKENIZER, TOKENIZER_CONFIG):
        (model / file).unlink()
    with caplog.at_level(logging.WARNING):
        assert read_end_tokens(str(model), "--model", VOCAB_SIZE) == [2]
    assert "eos_token_id is [2, 99999], and tokens are from 0 to 319" in caplog.text


def test_a_damaged_file_is_one_line(model: Path) -> None:
    (model / GENERATION).write_text('{"eos_token_id": "2"}')
    with pytest.raises(SetupError, match=r"^--model: .*generation_config\.json: eos_token_id is"):
        read_end_tokens(str(model), "--model", VOCAB_SIZE)
