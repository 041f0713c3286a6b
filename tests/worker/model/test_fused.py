"""Fused layers take the place of transformers' where they compute the same, and only there."""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from optimist_worker.model.fused import LlamaLayer, fuse
from optimist_worker.model.model import load_model
from optimist_worker.model.quantise import quantise
from optimist_worker.model.rounding import Bits
from tests.checkpoints import ATTENTION_FAMILIES, FAMILIES, VOCAB_SIZE
from tests.worker.step import build_runner, generate

PROMPT = random.Random(3).choices(range(3, VOCAB_SIZE), k=40)
ORIGINAL = "original_max_position_embeddings"


def count_fused(module: Any) -> int:
    return sum(isinstance(part, LlamaLayer) for part in module.modules())


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, dtype) for family in FAMILIES for dtype in ("float32", "float64", "bfloat16")),
        *((family, "float32") for family in sorted(set(ATTENTION_FAMILIES) - set(FAMILIES))),
    ],
)
def test_layers_of_llama_and_its_like_are_fused_and_no_others(
    family: str, dtype: str, checkpoint: Callable[[str], Path]
) -> None:
    model = load_model(str(checkpoint(family)), dtype, "cpu")
    fuse(model)
    assert count_fused(model.module) == (len(model.layers) if family in FAMILIES else 0)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear"},
        {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 16},
        {"rope_type": "yarn", ORIGINAL: 256},
    ],
)
def test_scaled_rotary_embeddings_and_sharded_files(
    rope: dict[str, Any], llama_path: Path, tmp_path: Path
) -> None:
    auto_model: Any = transformers.AutoModelForCausalLM
    reference = auto_model.from_pretrained(llama_path, dtype=torch.float32)
    reference.config.rope_parameters = {"rope_theta": 10000.0, "factor": 4.0, **rope}
    reference.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    reference = auto_model.from_pretrained(tmp_path, dtype=torch.float64)
    expected = reference.generate(
        torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False, eos_token_id=None
    )
    runner = build_runner(tmp_path)
    assert count_fused(runner.engine.model.module) == len(runner.engine.model.layers)
    assert generate(runner, PROMPT, 24) == expected[0, len(PROMPT) :].tolist()


def test_a_layer_that_differs_stays(llama_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = load_model(str(llama_path), "float32", "cpu")
    changed = model.module.model.layers[1]
    changed.mlp.register_forward_hook(lambda mlp, inputs, output: output * 1.01)
    with caplog.at_level(logging.WARNING):
        fuse(model)
    assert model.module.model.layers[1] is changed
    assert count_fused(model.module) == len(model.layers) - 1
    assert "layer 1 of" in caplog.text
    assert "the fused layer differs by" in caplog.text


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_copy_keeps_its_layers(llama_path: Path, bits: Bits) -> None:
    copied = quantise(load_model(str(llama_path), "float32", "cpu"), bits)
    fuse(copied)
    assert count_fused(copied.module) == 0
