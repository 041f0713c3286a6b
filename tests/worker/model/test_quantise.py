"""Quantised copies agree with their model, share its tensors and leave it alone."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from optimist_common.errors import SetupError
from optimist_worker.model.model import Model, load_model
from optimist_worker.model.quantise import (
    KEPT_FILE,
    Int4Linear,
    Int8Linear,
    can_quantise,
    extra_bytes,
    quantise,
    quantise_linear,
)
from optimist_worker.model.rounding import GROUP_SIZE, Bits
from tests.checkpoints import VOCAB_SIZE

ERRORS: dict[Any, float] = {Int8Linear: 0.015, Int4Linear: 0.12}
ERRORS |= {partial(quantise_linear, bits=8): 0.015, partial(quantise_linear, bits=4): 0.12}
LAYERS = list(ERRORS)
IN, OUT = 3 * GROUP_SIZE, 48


def linear(dtype: torch.dtype = torch.float32, bias: bool = True) -> nn.Linear:
    torch.manual_seed(7)
    return nn.Linear(IN, OUT, bias=bias, dtype=dtype).requires_grad_(False)


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("bias", "dtype"), [(True, torch.float32), (False, torch.float64), (True, torch.bfloat16)]
)
@pytest.mark.parametrize("layer", LAYERS)
def test_layer_computes_nearly_the_same(layer: Any, bias: bool, dtype: torch.dtype) -> None:
    exact = linear(dtype, bias)
    quantised = layer(exact)
    for shape in ((1, IN), (5, IN), (1, 40, IN), (2, 3, IN)):
        inputs = torch.randn(shape, dtype=dtype)
        outputs = quantised(inputs)
        assert outputs.dtype == dtype
        assert outputs.shape == (*shape[:-1], OUT)
        assert error(outputs, exact(inputs)) < ERRORS[layer]
    assert quantised(torch.empty((1, 0, IN), dtype=dtype)).shape == (1, 0, OUT)
    assert torch.isfinite(quantised(torch.zeros((3, IN), dtype=dtype))).all()


def test_shapes_that_a_kernel_does_not_take_are_left() -> None:
    assert can_quantise(nn.Linear(GROUP_SIZE, 16), 4)
    assert not can_quantise(nn.Linear(GROUP_SIZE + 1, 16), 4)
    assert can_quantise(nn.Linear(GROUP_SIZE + 1, 17), 8)


def logits_of(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    """Runs a model on its own, `[num_tokens, vocab_size]`."""
    implementation = model.module.config._attn_implementation
    model.module.set_attn_implementation("eager")
    with torch.inference_mode():
        logits = model.module(tokens[None], use_cache=False).logits[0]
    model.module.set_attn_implementation(implementation)
    return torch.as_tensor(logits.double())


@pytest.mark.parametrize(
    ("family", "bits", "dtype"),
    [("llama", 4, "bfloat16"), ("qwen2", 8, "float64"), ("gemma3", 8, "float32")],
)
def test_copy_agrees_with_its_model(
    family: str, bits: Bits, dtype: str, checkpoint: Callable[[str], Path]
) -> None:
    model = load_model(str(checkpoint(family)), dtype, "cpu")
    before = {name: weight.clone() for name, weight in model.module.named_parameters()}
    quantised = quantise(model, bits)
    assert quantised.dtype == (torch.float32 if dtype == "float64" else model.dtype)
    assert quantised.name == f"{model.name} (int{bits})"
    tokens = torch.arange(3, VOCAB_SIZE)
    logits, expected = logits_of(quantised, tokens), logits_of(model, tokens)
    together = torch.stack([logits.flatten(), expected.flatten()])
    agreed = (logits.argmax(1) == expected.argmax(1)).double().mean()
    assert torch.corrcoef(together)[0, 1] > (0.99 if bits == 8 else 0.75)
    assert agreed > (0.8 if bits == 8 else 0.2)
    assert not torch.equal(logits, expected)
    assert bits == 4 or not any(isinstance(part, nn.Linear) for part in quantised.module.modules())
    for name, weight in model.module.named_parameters():
        assert torch.equal(weight, before[name])
        assert weight.dtype == model.dtype


def test_copy_shares_what_is_not_quantised(llama_path: Path) -> None:
    model = load_model(str(llama_path), "float32", "cpu")
    copied = quantise(model, 4)
    addresses = {weight.data_ptr() for weight in model.module.parameters()}
    shared = dict(copied.module.named_parameters())
    assert {name.rsplit(".", 2)[-2] for name in shared} == {
        "embed_tokens",
        "input_layernorm",
        "post_attention_layernorm",
        "norm",
    }
    assert all(weight.data_ptr() in addresses for weight in shared.values())
    linears = [part for part in model.module.modules() if isinstance(part, nn.Linear)]
    full = sum(part.weight.nbytes for part in linears)
    assert 0.125 * full < extra_bytes(copied, model) < 0.25 * full
    assert extra_bytes(model, model) == 0


EVERY = "every linear layer"


def kept_copy(source: Path, target: Path, kept: Any) -> Model:
    shutil.copytree(source, target)
    if kept == {"int8": EVERY}:
        modules = load_model(str(source), "float32", "cpu").module.named_modules()
        kept = {"int8": [name for name, part in modules if isinstance(part, nn.Linear)]}
    text = kept if isinstance(kept, str) else json.dumps(kept)
    (target / KEPT_FILE).write_text(text)
    return load_model(str(target), "float32", "cpu")


def test_directory_says_which_layers_stay(llama_path: Path, tmp_path: Path) -> None:
    names = ["model.layers.1.mlp.down_proj", "lm_head"]
    model = kept_copy(llama_path, tmp_path / "kept", {"int8": names})
    copied = quantise(model, 8).module
    left = [name for name, part in copied.named_modules() if isinstance(part, nn.Linear)]
    assert left == names
    assert copied.lm_head.weight is model.module.lm_head.weight
    other = quantise(model, 4).module
    assert not any(isinstance(part, nn.Linear) for part in other.modules())


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ({"int8": ["model.layers.9.mlp.down_proj"]}, "no linear layer of the model"),
        ({"int8": [1]}, "must hold lists of names"),
        (["lm_head"], "must hold lists of names"),
        ("{", "must hold lists of names"),
        ({"int8": EVERY}, "no linear layer that can be quantised to 8 bits"),
    ],
)
def test_wrong_lists_are_refused(kept: Any, words: str, llama_path: Path, tmp_path: Path) -> None:
    model = kept_copy(llama_path, tmp_path / "kept", kept)
    with pytest.raises(SetupError, match=words):
        quantise(model, 8)
