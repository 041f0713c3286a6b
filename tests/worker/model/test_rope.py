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

from optimist_common.errors import SetupError
from optimist_worker.model.model import load_model
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


@pytest.mark.parametrize("case", CASES)
def test_lengths_and_texts_up_to_them_are_those_of_transformers(
    case: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    family, positions, values, length = CASES[case]
    path = model_with(
        checkpoint(family), tmp_path / "model", max_position_embeddings=positions, **values
    )
    runner = build_runner(path)
    assert runner.engine.model.max_position_embeddings == length
    auto_model: Any = transformers.AutoModelForCausalLM
    reference = auto_model.from_pretrained(path, dtype=torch.float64)
    number = length - len(PROMPT)
    expected = reference.generate(
        torch.tensor([PROMPT]), max_new_tokens=number, do_sample=False, eos_token_id=None
    )[0, len(PROMPT) :].tolist()
    assert generate(runner, PROMPT, number) == expected
    # Drafts never reach beyond the longest sequence.
    drafted = generate(
        *(runner, PROMPT, number), predict=lambda output: expected[len(output) : -1], width=8
    )
    assert drafted == expected


def test_unknown_rotary_embeddings_are_refused(llama_path: Path, tmp_path: Path) -> None:
    path = model_with(llama_path, tmp_path / "model", rope_scaling={"type": "frob", "factor": 2.0})
    with pytest.raises(SetupError, match=r"config\.json: rope_type is 'frob', which transformers"):
        load_model(str(path), "float32", "cpu")
