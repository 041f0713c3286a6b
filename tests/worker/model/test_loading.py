"""Models as a user names them, weights or none, and what is refused."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging as transformers_logging

from optimist_common.errors import SetupError
from optimist_worker.model.model import load_model
from tests.checkpoints import FAMILIES, VOCAB_SIZE, tiny_checkpoint


def changed_config(source: Path, target: Path, **changes: Any) -> Path:
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    return target


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "nonesuch"}, "nonesuch"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "encoder-decoder"),
        ({"model_type": "qwen3_next"}, "linear_attention"),
        ({"num_hidden_layers": 5}, "lacks 9 weights"),
        ({"hidden_size": 32}, "cannot load"),
        ({"hidden_size": "big"}, "Field 'hidden_size' expected int"),
        ({"num_attention_heads": 0}, "cannot read the config"),
    ],
)
def test_models_that_cannot_be_served_are_refused(
    changes: dict[str, Any], reason: str, llama_path: Path, tmp_path: Path
) -> None:
    path = changed_config(llama_path, tmp_path / "changed", **changes)
    with pytest.raises(SetupError) as refusal:
        load_model(str(path), "float32", "cpu")
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_incomplete_directories_are_refused(llama_path: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is not a directory"):
        load_model(str(tmp_path / "missing"), "float32", "cpu")
    with pytest.raises(SetupError, match=r"no config\.json"):
        load_model(str(tmp_path), "float32", "cpu")
    shutil.copy(llama_path / "config.json", tmp_path)
    with pytest.raises(SetupError, match=r"no \*\.safetensors"):
        load_model(str(tmp_path), "float32", "cpu")
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(SetupError, match="damaged weight file"):
        load_model(str(tmp_path), "float32", "cpu")


def test_refusals_name_the_setting_that_named_the_model(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"^--drafter-model: .* is not a directory"):
        load_model(str(tmp_path / "missing"), "float32", "cpu", flag="--drafter-model")


def test_missing_device_is_refused(llama_path: Path) -> None:
    with pytest.raises(SetupError, match="cuda:99 is not on this machine"):
        load_model(str(llama_path), "float32", "cuda:99")


@pytest.fixture
def config_only(llama_path: Path, tmp_path: Path) -> Path:
    shutil.copy(llama_path / "config.json", tmp_path)
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
def test_dummy_weights_need_only_a_config(family: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, family)
    real = load_model(str(path), "float32", "cpu")
    (path / "model.safetensors").unlink()
    dummy = load_model(str(path), "bfloat16", "cpu", dummy_weights=True)
    assert dummy.name == f"{path} (dummy weights)"
    assert dummy.layers == real.layers
    assert dummy.eos_token_ids == real.eos_token_ids
    shapes = {name: weight.shape for name, weight in real.module.named_parameters()}
    assert {name: weight.shape for name, weight in dummy.module.named_parameters()} == shapes
    assert {weight.dtype for weight in dummy.module.parameters()} == {torch.bfloat16}
    for name, weight in dummy.module.named_parameters():
        assert torch.isfinite(weight).all(), name
        assert weight.ndim < 2 or 0.001 < weight.float().std() < 0.2, name
    # Frequencies are computed and not loaded, so they are those of the real model.
    for (name, own), other in zip(dummy.module.named_buffers(), real.module.buffers(), strict=True):
        torch.testing.assert_close(own.float(), other.float(), msg=name)


def test_dummy_weights_follow_from_their_seed_alone(config_only: Path) -> None:
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = load_model(str(config_only), "float32", "cpu", dummy_weights=True)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    second = load_model(str(config_only), "float32", "cpu", dummy_weights=True)
    for one, other in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_dummy_weights_end_at_the_tokens_of_the_generation_config(config_only: Path) -> None:
    (config_only / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    model = load_model(str(config_only), "float32", "cpu", dummy_weights=True)
    assert model.eos_token_ids == [2, 7]
    assert model.vocab_size == VOCAB_SIZE


@pytest.mark.parametrize("content", ["{", "[]", '{"watermarking_config": 5}'])
def test_damaged_generation_configs_are_refused(config_only: Path, content: str) -> None:
    (config_only / "generation_config.json").write_text(content)
    with pytest.raises(SetupError, match=r"^--model: cannot read generation_config\.json of "):
        load_model(str(config_only), "float32", "cpu", dummy_weights=True)


@pytest.mark.parametrize(("dummy", "verb"), [(False, "loaded"), (True, "made")])
def test_log_reports_size_and_duration(
    dummy: bool, verb: str, llama_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        load_model(str(llama_path), "float32", "cpu", dummy_weights=dummy)
    begin, end = (record.message for record in caplog.records if "weights" in record.message)
    assert str(llama_path) in begin
    assert ("dummy" in begin) == dummy
    assert end.startswith(f"{verb} 0.00 GiB of weights in ")


@pytest.mark.parametrize(
    ("is_terminal", "level", "shown"),
    [(True, logging.INFO, True), (True, logging.WARNING, False), (False, logging.INFO, False)],
)
def test_progress_bar_is_for_terminals(
    is_terminal: bool,
    level: int,
    shown: bool,
    llama_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    with caplog.at_level(level, "optimist_worker.model.loading"):
        load_model(str(llama_path), "float32", "cpu")
    assert ("Loading weights: 100%" in capsys.readouterr().err) == shown
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
