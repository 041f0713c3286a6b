"""Models as a user names them, their device, dtype and memory, and what is refused."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from optimist_common.errors import SetupError
from optimist_worker.cpu_kernels import build
from optimist_worker.model.fused import fuse
from optimist_worker.model.linear import PanelLinear
from optimist_worker.model.loading import (
    choose_device,
    choose_dtype,
    load_weights,
    take_device,
)
from optimist_worker.model.memory import plan_memory
from optimist_worker.model.model import Model, load_model
from optimist_worker.model.source import ModelSource, read_source
from optimist_worker.settings import WorkerSettings
from tests.checkpoints import FAMILIES, tiny_checkpoint
from tests.stack import BUNDLED_MODEL


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
        ({"model_type": "falcon_h1"}, "it has hybrid layers"),
        ({"model_type": "lfm2", "conv_L_cache": 0}, "conv_L_cache is 0; it must be a whole number"),
        ({"rope_parameters": {"rope_type": "frob"}}, "rope_type is 'frob', which transformers"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, and the weights have more layers"),
        ({"hidden_size": 32}, "config.json asks for [320, 32] (hidden_size is 32); 38 more"),
        ({"vocab_size": 640}, "[320, 64] and config.json asks for [640, 64] (vocab_size is 640)"),
        ({"attention_bias": True}, "lacks 16 weights, such as model.layers.0.self_attn.k_proj."),
        ({"hidden_act": "frob"}, "hidden_act is 'frob', which transformers"),
        ({"tie_word_embeddings": "yes"}, 'tie_word_embeddings is "yes"; it must be true or false'),
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
    with pytest.raises(SetupError, match=r"^--drafter-model: .* is not a directory"):
        load_model(str(tmp_path / "missing"), "float32", "cpu", flag="--drafter-model")
    with pytest.raises(SetupError, match=r"no config\.json"):
        load_model(str(tmp_path), "float32", "cpu")
    shutil.copy(llama_path / "config.json", tmp_path)
    with pytest.raises(SetupError, match=r"no \*\.safetensors"):
        load_model(str(tmp_path), "float32", "cpu")
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(SetupError, match="it is cut short, or not safetensors"):
        load_model(str(tmp_path), "float32", "cpu")


@pytest.fixture
def config_only(llama_path: Path, tmp_path: Path) -> Path:
    shutil.copy(llama_path / "config.json", tmp_path)
    return tmp_path


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
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


@pytest.mark.parametrize("content", ["{", "[]", '{"eos_token_id": "2"}'])
def test_damaged_generation_configs_are_refused(config_only: Path, content: str) -> None:
    (config_only / "generation_config.json").write_text(content)
    with pytest.raises(SetupError, match=r"^--model: .*generation_config\.json:? "):
        load_model(str(config_only), "float32", "cpu", dummy_weights=True)


BLOCK_BYTES = 16 * 4 * 2 * 2 * 16 * 8
"""Tokens, layers, keys and values, heads, dimensions, bytes."""


@pytest.fixture(scope="module")
def model(llama_path: Path) -> Model:
    return load_model(str(llama_path), "float64", "cpu")


def plan(model: Model, **options: Any) -> tuple[int, int]:
    sizes = plan_memory(WorkerSettings(model="m", **options), model)
    return sizes.num_blocks, sizes.max_model_len


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"kv_memory_mib": 1}, (2**20 // BLOCK_BYTES, 2**20 // BLOCK_BYTES * 16)),
        ({"max_num_seqs": 3}, (3 * 64, 1024)),
        ({"max_num_seqs": 3, "max_model_len": 100}, (3 * 7, 100)),
        ({"num_kv_blocks": 10}, (10, 160)),
    ],
    ids=["memory", "slots", "lengths", "given"],
)
def test_blocks_fill_the_memory_up_to_what_slots_can_use(
    options: dict[str, int], sizes: tuple[int, int], model: Model
) -> None:
    assert plan(model, **options) == sizes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_model_len": 1025}, "more than the 1024 positions"),
        ({"max_model_len": 161, "num_kv_blocks": 10}, "do not fit into 10 blocks"),
        ({"kv_memory_mib": 1, "block_size": 1024}, "one block takes"),
    ],
)
def test_impossible_sizes_are_refused(options: dict[str, int], words: str, model: Model) -> None:
    with pytest.raises(SetupError, match=words):
        plan(model, **options)


CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def source_with(**fields: object) -> ModelSource:
    config = SimpleNamespace(**fields)
    config.get_text_config = lambda: config
    return ModelSource("name", "--model", config)


@pytest.mark.parametrize(
    ("num_gpus", "name", "device"),
    [
        (0, "auto:3", "cpu"),
        (2, "auto", "cuda"),
        (2, "auto:1", "cuda:1"),
        (2, "cuda:1", "cuda:1"),
        (2, "cpu", "cpu"),
        (0, "cuda", None),
        (2, "auto:2", None),
    ],
)
def test_a_device_that_is_there_is_taken(
    num_gpus: int, name: str, device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a number, it becomes the current one."""
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: taken.append(device.index))
    if device is None:
        with pytest.raises(SetupError, match=r"--device: cuda\S* is not on this machine"):
            take_device(name)
    else:
        assert take_device(name) == choose_device(name) == torch.device(device)
    assert taken == ([1] if device == "cuda:1" else [])


def test_weights_go_straight_to_their_device(llama_path: Path) -> None:
    """On the meta device nothing has a value, so nothing has been held on the host."""
    meta = torch.device("meta")
    module = load_weights(read_source(str(llama_path), "--model"), torch.float32, meta)
    assert {each.device for each in module.state_dict().values()} == {meta}


@pytest.mark.parametrize(
    ("name", "device", "fields", "dtype"),
    [
        ("auto", CPU, {"dtype": torch.bfloat16}, torch.float32),
        ("auto", GPU, {"dtype": "float16"}, torch.float16),
        ("auto", GPU, {}, torch.float32),
        ("auto", GPU, {"dtype": torch.bfloat16, "minimum_dtype": "float32"}, torch.float32),
        ("auto", GPU, {"dtype": torch.float16, "minimum_dtype": "bfloat16"}, torch.bfloat16),
        ("bfloat16", CPU, {"dtype": torch.float32}, torch.bfloat16),
        ("float64", CPU, {"dtype": torch.float32, "minimum_dtype": "float32"}, torch.float64),
    ],
)
def test_a_dtype_that_is_set_goes_and_auto_takes_the_models_own_on_a_gpu(
    name: str, device: torch.device, fields: dict[str, Any], dtype: torch.dtype
) -> None:
    assert choose_dtype(source_with(**fields), name, device) == dtype


def choose_on_cpu(config: Any, *, has_kernels: bool = True) -> torch.dtype:
    source = ModelSource("name", "--model", config)
    return choose_dtype(source, "auto", CPU, has_kernels=has_kernels)


@pytest.mark.skipif(
    build.load() is None or not torch.cpu._is_avx512_supported(), reason="no such kernels here"
)
@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3"])
def test_on_a_cpu_auto_is_bfloat16_where_our_kernels_compute_the_whole_model(
    family: str, checkpoint: Callable[[str], Path]
) -> None:
    path = str(checkpoint(family))
    config = read_source(path, "--model").config
    assert choose_on_cpu(config) == torch.float32
    config.dtype = torch.bfloat16
    dtype = choose_on_cpu(config)
    assert dtype == (torch.bfloat16 if family in FAMILIES else torch.float32)
    if dtype == torch.bfloat16:
        model = load_model(path, "bfloat16", "cpu")
        fuse(model)
        assert not any(isinstance(part, nn.Linear) for part in model.module.modules())
        products = [part for part in model.module.modules() if isinstance(part, PanelLinear)]
        assert len(products) == 4 * len(model.layers) + 1
    assert choose_on_cpu(config, has_kernels=False) == torch.float32
    for fields in (
        {"dtype": torch.float16},
        {"quantization_config": {"quant_method": "awq"}},
        {"minimum_dtype": "float32"},
    ):
        other = copy.deepcopy(config)
        other.__dict__.update(fields)
        assert choose_on_cpu(other) == torch.float32


def test_the_bundled_model_is_not_computed_in_less_than_float32() -> None:
    with pytest.raises(SetupError, match=r"tiny-edit needs float32 .* not bfloat16; choose"):
        load_model(str(BUNDLED_MODEL), "bfloat16", "cpu")


@pytest.mark.parametrize("fields", [{"dtype": torch.float8_e4m3fn}, {"minimum_dtype": "float99"}])
def test_a_dtype_that_the_worker_lacks_is_named(fields: dict[str, Any]) -> None:
    (field,) = fields
    with pytest.raises(SetupError, match=f"^--model: name has {field} float.* in its config.json"):
        choose_dtype(source_with(**fields), "auto", CPU)
