"""Fused layers take the place of transformers' where they compute the same, and only there."""

import logging
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from optimist_worker.model.fused import LlamaLayer, fuse
from optimist_worker.model.model import load_model
from optimist_worker.model.quantise import quantise
from tests.checkpoints import VOCAB_SIZE
from tests.worker.step import build_runner, generate

PROMPT = random.Random(3).choices(range(3, VOCAB_SIZE), k=40)


def count_fused(module: Any) -> int:
    return sum(isinstance(part, LlamaLayer) for part in module.modules())


def test_weights_in_several_files(llama_path: Path, tmp_path: Path) -> None:
    auto_model: Any = transformers.AutoModelForCausalLM
    reference = auto_model.from_pretrained(llama_path, dtype=torch.float32)
    reference.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    runner = build_runner(tmp_path)
    assert count_fused(runner.engine.model.module) == len(runner.engine.model.layers)
    assert generate(runner, PROMPT, 12) == generate(build_runner(llama_path), PROMPT, 12)


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


def test_a_quantised_copy_keeps_its_layers(llama_path: Path) -> None:
    copied = quantise(load_model(str(llama_path), "float32", "cpu"), 8)
    fuse(copied)
    assert count_fused(copied.module) == 0
