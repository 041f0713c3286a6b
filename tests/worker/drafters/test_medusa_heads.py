"""Medusa heads compute what was published, or say in a sentence what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import linear, silu

from optimist_common.errors import SetupError
from optimist_training.drafters.heads import save_medusa
from optimist_worker.drafters.heads.medusa import MedusaHeads, load_medusa

HEADS, LAYERS, HIDDEN, VOCAB = 3, 2, 24, 40
CPU = torch.device("cpu")
Weights = dict[str, torch.Tensor]

ORIGINAL = {"medusa_num_heads": HEADS, "medusa_num_layers": LAYERS}
CONVERTED = {"num_heads": HEADS, "num_hidden_layers": LAYERS, "vocab_size": VOCAB}


def write(directory: Path, weights: Weights, config: dict[str, Any]) -> str:
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64) / 4


def original() -> Weights:
    torch.manual_seed(0)
    weights = {}
    for head in range(HEADS):
        for layer in range(LAYERS):
            weights[f"{head}.{layer}.linear.weight"] = random(HIDDEN, HIDDEN)
            weights[f"{head}.{layer}.linear.bias"] = random(HIDDEN)
        weights[f"{head}.{LAYERS}.weight"] = random(VOCAB, HIDDEN)
    return weights


def converted(weights: Weights) -> Weights:
    """The same without biases, under the names of the converted layout."""
    result = {}
    for head in range(HEADS):
        for layer in range(LAYERS):
            name = f"blocks.{head}.layers.{layer}.weight"
            result[name] = weights[f"{head}.{layer}.linear.weight"]
        result[f"lm_heads.{head}.weight"] = weights[f"{head}.{LAYERS}.weight"]
    return result


def compute(weights: Weights, states: torch.Tensor) -> torch.Tensor:
    """The published definition, head by head."""
    logits = []
    for head in range(HEADS):
        inner = states
        for layer in range(LAYERS):
            name = f"{head}.{layer}.linear"
            inner = inner + silu(linear(inner, weights[f"{name}.weight"], weights[f"{name}.bias"]))
        logits.append(linear(inner, weights[f"{head}.{LAYERS}.weight"]))
    return torch.stack(logits)


def load(name: str, lm_head: torch.Tensor | None = None) -> MedusaHeads:
    return load_medusa(name, HIDDEN, VOCAB, torch.float64, CPU, lm_head)


@pytest.mark.parametrize("prefix", ["", "model.medusa_head."])
def test_original_layout_computes_the_published_definition(tmp_path: Path, prefix: str) -> None:
    weights, states = original(), random(5, HIDDEN)
    named = {prefix + key: value for key, value in weights.items()}
    heads = load(write(tmp_path, named, ORIGINAL))
    torch.testing.assert_close(heads(states), compute(weights, states))
    assert heads(states).shape == (HEADS, 5, VOCAB)


def test_converted_layout_computes_the_same_without_biases(tmp_path: Path) -> None:
    weights, states = original(), random(5, HIDDEN)
    heads = load(write(tmp_path, converted(weights), CONVERTED))
    for head in range(HEADS):
        for layer in range(LAYERS):
            weights[f"{head}.{layer}.linear.bias"].zero_()
    torch.testing.assert_close(heads(states), compute(weights, states))


def test_one_output_matrix_is_shared_and_an_absent_one_is_the_targets(tmp_path: Path) -> None:
    weights, states = original(), random(5, HIDDEN)
    shared = random(VOCAB, HIDDEN)
    for head in range(HEADS):
        weights[f"{head}.{LAYERS}.weight"] = shared
    layers = {key: value for key, value in weights.items() if "linear" in key}
    expected = compute(weights, states)
    absent = load(write(tmp_path, layers, ORIGINAL), lm_head=shared)
    torch.testing.assert_close(absent(states), expected)
    named = load(write(tmp_path, layers | {"lm_head.weight": shared}, ORIGINAL))
    torch.testing.assert_close(named(states), expected)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_reduced_vocabulary_becomes_the_targets(tmp_path: Path, is_cut: bool) -> None:
    """The output matrices have all the target's rows, as vLLM's have, or the known ones alone."""
    weights, states = original(), random(5, HIDDEN)
    expected = compute(weights, states)
    known = torch.tensor([9, 2, 5])
    weights["token_map"] = known
    for head in range(HEADS if is_cut else 0):
        name = f"{head}.{LAYERS}.weight"
        weights[name] = weights[name][known].contiguous()
    logits = load(write(tmp_path, weights, ORIGINAL | {"truncated_vocab_size": 3}))(states)
    torch.testing.assert_close(logits[..., known], expected[..., known])
    others = torch.ones(VOCAB, dtype=torch.bool)
    others[known] = False
    assert bool((logits[..., others] == float("-inf")).all())


@pytest.mark.parametrize(("share", "target_ids"), [(False, torch.tensor([3, 8, 1])), (True, None)])
def test_saved_heads_load_again(
    tmp_path: Path, share: bool, target_ids: torch.Tensor | None
) -> None:
    torch.manual_seed(1)
    heads = MedusaHeads(
        HEADS, LAYERS, HIDDEN, VOCAB, share_lm_head=share, target_ids=target_ids
    ).double()
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter)
    save_medusa(heads, tmp_path / "new", torch.float64)
    states = random(5, HIDDEN)
    torch.testing.assert_close(load(str(tmp_path / "new"))(states), heads(states))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"1.0.linear.weight": None}, "lacks the weight of head 1, layer 0"),
        ({"2.2.weight": None}, "lacks the lm_head of head 2"),
        ({"0.1.linear.weight": torch.zeros(HIDDEN, HIDDEN + 1)}, "another target"),
        ({"3.0.linear.weight": torch.zeros(HIDDEN, HIDDEN)}, r"3\.0\.linear\.weight"),
        ({"token_map": torch.zeros(8)}, "token_map names a token twice"),
        ({"token_map": torch.tensor([VOCAB])}, "token_map names tokens that the target does not"),
    ],
)
def test_wrong_weights_are_one_clear_sentence(
    tmp_path: Path, change: dict[str, torch.Tensor | None], message: str
) -> None:
    changed = {key: value for key, value in (original() | change).items() if value is not None}
    with pytest.raises(SetupError, match=rf"^--drafter-model: .*{message}") as raised:
        load(write(tmp_path, changed, ORIGINAL))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"vocab_size": VOCAB, "truncated_vocab_size": 3}, "lacks token_map"),
        ({"medusa_num_heads": None}, "lacks medusa_num_heads"),
        ({"medusa_num_heads": True}, "medusa_num_heads"),
    ],
)
def test_wrong_configs_are_refused(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        load(write(tmp_path, original(), ORIGINAL | config))


def test_missing_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is not a directory"):
        load(str(tmp_path / "nowhere"))
    with pytest.raises(SetupError, match=r"no \*\.safetensors"):
        load(str(tmp_path))
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"never read")
    with pytest.raises(SetupError, match=r"^--drafter-model: .*pickle.*convert.*safetensors"):
        load(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0not json")
    with pytest.raises(SetupError, match="damaged"):
        load(str(tmp_path))
