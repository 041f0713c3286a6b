"""Model directories that are damaged or hostile: one line says which file, which key and why."""

import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from optimist_common.errors import SetupError
from optimist_common.model_files.config import check_config
from optimist_common.model_files.directory import check_model, check_tokenizer
from optimist_common.model_files.json_file import parse_object
from optimist_worker.model.model import load_model
from tests import damage
from tests.damage import Damage, damaged, make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("good"))


def refusal(path: Path, *, with_class: bool, with_tokenizer: bool) -> str:
    try:
        if with_tokenizer:
            check_tokenizer(str(path), "--model")
        else:
            check_model(str(path), "--model", needs_weights=True)
        assert with_class, "the files pass"
        load_model(str(path), "float32", "cpu")
    except SetupError as error:
        return str(error)
    raise AssertionError("it is taken for whole")


def check(damage: Damage, model: Path, target: Path, *, with_tokenizer: bool = False) -> None:
    path = damaged(model, target / "model", damage)
    said = refusal(path, with_class=damage.needs_class, with_tokenizer=with_tokenizer)
    assert said.startswith((f"--model: {path}", f"--model: cannot load {path}")), said
    assert "\n" not in said
    assert len(said) < 600 + len(str(path))
    assert re.search(damage.words, said), said


def named(damages: chain[Damage]) -> list[object]:
    return [pytest.param(each, id=each.name) for each in damages]


OF_MODELS = chain(
    damage.of_config(),
    damage.of_files(damage.CONFIG),
    damage.of_generation(),
    damage.of_weights(),
    damage.of_model(),
)
OF_TOKENIZERS = chain(
    damage.of_tokenizer(),
    damage.of_tokenizer_config(),
    damage.of_files(damage.TOKENIZER),
)


def test_a_whole_model_passes(model: Path) -> None:
    check_model(str(model), "--model", needs_weights=True)
    check_tokenizer(str(model), "--model")
    assert load_model(str(model), "float32", "cpu").eos_token_ids == [2]


@pytest.mark.parametrize("damage", named(OF_MODELS))
def test_damaged_models_are_refused_in_one_line(
    damage: Damage, model: Path, tmp_path: Path
) -> None:
    check(damage, model, tmp_path)


@pytest.mark.parametrize("damage", named(OF_TOKENIZERS))
def test_damaged_tokenizers_are_refused_in_one_line(
    damage: Damage, model: Path, tmp_path: Path
) -> None:
    check(damage, model, tmp_path, with_tokenizer=True)


@pytest.mark.parametrize("model_type", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
def test_every_config_of_transformers_passes(model_type: str) -> None:
    """What its own classes say of themselves must not be refused."""
    try:
        config = transformers.CONFIG_MAPPING[model_type]()
        text = config.to_json_string(use_diff=False)
    except Exception as error:
        pytest.skip(f"transformers cannot make one: {type(error).__name__}")
    check_config(parse_object(text.encode(), "config.json"))


IN_LITTLE_MEMORY = """
import resource, sys
from optimist_common.errors import SetupError
from optimist_common.model_files.directory import check_model

resource.setrlimit(resource.RLIMIT_DATA, (2**29, 2**29))
try:
    check_model(sys.argv[1], "--model", needs_weights=True)
except SetupError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (damage.CONFIG, '{"a": [' + "{}," * 1_390_000 + "1]}"),
        (damage.INDEX, '{"weight_map": {' + '"a":0,' * 2_000_000 + '"b": 1}}'),
    ],
    ids=["objects", "names"],
)
def test_large_files_are_refused_in_little_memory(
    name: str, content: str, model: Path, tmp_path: Path
) -> None:
    path = damaged(model, tmp_path / "model", Damage("", damage.write(name, content), ""))
    if name == damage.INDEX:
        (path / damage.WEIGHTS).unlink()
    command = [sys.executable, "-c", IN_LITTLE_MEMORY, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert name in done.stdout, done.stderr
