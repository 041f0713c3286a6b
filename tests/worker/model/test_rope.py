"""How long sequences may be by what a config says of rotary embeddings, and their texts."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from optimist_worker.model.model import known_positions
from optimist_worker.model.source import read_source
from tests.checkpoints import VOCAB_SIZE
from tests.worker.step import build_runner, generate

PROMPT = random.Random(5).choices(range(3, VOCAB_SIZE), k=20)
ORIGINAL = "original_max_position_embeddings"
LONG = {"short_factor": [1.0, 1.5] * 4, "long_factor": [4.0] * 8}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
PLAIN = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
CASES: dict[str, tuple[str, int, dict[str, Any], int]] = {
    # As the README of Qwen2.5 says.
    "yarn": ("qwen2", 32, {"rope_scaling": {"factor": 4.0, ORIGINAL: 32, "type": "yarn"}}, 128),
    "new": ("qwen2", 32, {"rope_parameters": {"factor": 3.0, "rope_type": "yarn"}}, 96),
    "has it": ("llama", 96, {"rope_scaling": {"factor": 2.0, ORIGINAL: 48, "type": "yarn"}}, 96),
    "linear": ("llama", 32, {"rope_scaling": {"factor": 2.5, "type": "linear"}}, 80),
    "of a type": ("gemma3", 96, {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}, 96),
    "dynamic": ("llama", 64, {"rope_scaling": {"factor": 4.0, "type": "dynamic"}}, 64),
    "llama3": ("llama", 96, {"rope_scaling": {"factor": 2.0, "rope_type": "llama3", **BANDS}}, 96),
    "phi3": ("phi3", 128, {ORIGINAL: 64, "rope_scaling": {"type": "longrope", **LONG}}, 64),
    "inside": ("llama", 128, {"rope_scaling": {"type": "longrope", ORIGINAL: 64, **LONG}}, 64),
    "both": (
        *("llama", 128),
        *({ORIGINAL: 64, "rope_scaling": {"type": "longrope", ORIGINAL: 96, **LONG}}, 64),
    ),
    "never": ("llama", 96, {"rope_parameters": {"rope_type": "longrope", **LONG}}, 96),
    "of types": (
        *("gemma3", 128),
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "longrope", ORIGINAL: 64, **LONG},
                **PLAIN,
            }
        },
        64,
    ),
}


def model_with(source: Path, target: Path, **values: Any) -> Path:
    """Copies a checkpoint whose config has other rotary parameters."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    config.pop("rope_parameters", None)
    (target / "config.json").write_text(json.dumps(config | values))
    return target


def case_with(case: str, checkpoint: Callable[[str], Path], target: Path) -> tuple[Path, int]:
    family, positions, values, length = CASES[case]
    source = checkpoint(family)
    return model_with(source, target, max_position_embeddings=positions, **values), length


@pytest.mark.parametrize("case", CASES)
def test_lengths_are_those_up_to_which_frequencies_stay(
    case: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path, length = case_with(case, checkpoint, tmp_path / "model")
    assert known_positions(read_source(str(path), "--model").text_config) == length


@pytest.mark.parametrize("case", ["yarn", "linear", "llama3", "phi3", "of types"])
def test_texts_up_to_these_lengths_are_those_of_transformers(
    case: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path, length = case_with(case, checkpoint, tmp_path / "model")
    runner = build_runner(path)
    assert runner.engine.model.max_position_embeddings == length
    auto_model: Any = transformers.AutoModelForCausalLM
    reference = auto_model.from_pretrained(path, dtype=torch.float64)
    number = length - len(PROMPT)
    expected = reference.generate(
        torch.tensor([PROMPT]), max_new_tokens=number, do_sample=False, eos_token_id=None
    )[0, len(PROMPT) :].tolist()
    # Drafts never reach beyond the longest sequence.
    drafted = generate(
        *(runner, PROMPT, number), predict=lambda output: expected[len(output) : -1], width=8
    )
    assert drafted == expected
