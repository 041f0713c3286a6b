"""Runners that draft in every way, with networks of random weights."""

import functools
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.plan import Sizes
from optimist_worker.drafters.build import DrafterWeights, build_drafter
from optimist_worker.drafters.heads.eagle import EagleHead, FusedLayer
from optimist_worker.drafters.heads.medusa import MedusaHeads
from optimist_worker.drafters.shape import DraftShape
from optimist_worker.model.fused import fuse
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import Model, load_model
from optimist_worker.runner.runner import Runner
from optimist_worker.settings import WorkerSettings
from tests.checkpoints import add_tokenizer
from tests.worker.step import SIZES, local_runner

SHAPES = {
    "chain": DraftShape(4, 4),
    "fixed": DraftShape(12, 3, 3),
    "dynamic": DraftShape(10, 4, 3, is_dynamic=True),
}
WAYS = ("ngram", "draft_model", "itself", "discard", "medusa", "eagle")


def drafting_runner(
    path: Path,
    way: str,
    shape: DraftShape,
    *,
    rule: AcceptanceRule = AcceptanceRule.COUPLED,
    sizes: Sizes = SIZES,
    reads_sizes: bool = True,
    most_tokens: int = 24,
    dtype: str = "float64",
) -> Runner:
    """Builds a runner whose drafter is one of WAYS; `itself` drafts with the target's weights.

    A pass of a draft model has at most a few tokens, so that it catches up in several passes.
    """
    torch.set_num_threads(1)
    target = load_model(str(path), dtype, "cpu")
    fuse(target)
    state = DeviceState(target, sizes, reads_sizes=reads_sizes)
    tree = "dynamic" if shape.is_dynamic else "fixed"
    settings = WorkerSettings.model_validate(
        {
            "model": str(path),
            "drafter": "draft_model" if way in ("itself", "discard") else way,
            "drafter_kv": "discard" if way == "discard" else "keep_and_rollback",
            "drafter_tokens": shape.num_tokens,
            "drafter_tree": "none" if shape.is_chain else tree,
            "drafter_depth": shape.depth,
            "drafter_width": max(shape.width, 2),
            "acceptance": rule,
            "max_num_batched_tokens": most_tokens,
        }
    )
    drafter, tap = build_drafter(settings, _weights(path, way, target), target, state)
    return local_runner(target, state, drafter, tap, rule)


def _weights(path: Path, way: str, target: Model) -> DrafterWeights | None:
    if way in ("medusa", "eagle"):
        return random_medusa(target) if way == "medusa" else random_eagle(target)
    if way == "ngram":
        return None
    model = load_model(str(path), str(target.dtype).removeprefix("torch."), "cpu")
    if way != "itself":
        blur(model)
    fuse(model)
    return model


def blur(model: Model) -> None:
    """Changes weights a little, so that a copy of the target is right now and then."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.module.parameters():
            noise = torch.empty(parameter.shape, dtype=parameter.dtype)
            parameter += noise.normal_(0.0, 0.02, generator=generator)


def save_blurred(model: Model, directory: Path) -> None:
    """Changes a model's weights a little and saves it as a draft model."""
    blur(model)
    model.module.save_pretrained(directory)
    add_tokenizer(directory)


def random_medusa(target: Model) -> MedusaHeads:
    """Heads that say what the target would say now, and a little noise."""
    output = target.module.get_output_embeddings().weight
    heads = MedusaHeads(4, 1, output.shape[1], target.vocab_size).double()
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for head in range(4):
            heads.lm_head[head] = output
        heads.layer_weight.normal_(0.0, 0.05, generator=generator)
    return heads.eval().requires_grad_(False)


def random_eagle(target: Model) -> EagleHead:
    """A head that passes the features on, changed by a layer with small weights."""
    size = target.module.config.hidden_size
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = heads | {"num_hidden_layers": 1, "vocab_size": target.vocab_size}
    config = LlamaConfig(hidden_size=size, intermediate_size=2 * size, **sizes)
    head = EagleHead(
        config,
        FusedLayer(config, bias=False),
        target.module.get_input_embeddings().weight,
        target.module.get_output_embeddings().weight,
        vocab_size=target.vocab_size,
    ).double()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if parameter.requires_grad and "norm" not in name:
                parameter.normal_(0.0, 0.1, generator=generator)
        head.first.fc.weight[:, size:] += torch.eye(size)
    return head.eval().requires_grad_(False)


@functools.cache
def shared_runner(path: Path, way: str, shape: str, rule: AcceptanceRule) -> Runner:
    """A runner that tests may share; release its slots first."""
    return drafting_runner(path, way, SHAPES[shape], rule=rule)
