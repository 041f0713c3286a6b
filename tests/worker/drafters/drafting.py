"""Runners that draft in every way, with networks of random weights."""

import functools
from pathlib import Path

import torch
from transformers import LlamaConfig

from optimist_common.drafts import DraftSource
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.plan import Sizes
from optimist_worker.drafters.drafter import Drafter
from optimist_worker.drafters.heads.eagle import EagleHead, FusedLayer
from optimist_worker.drafters.heads.medusa import MedusaHeads
from optimist_worker.drafters.network import DraftKV, DraftModelNetwork, EagleNetwork
from optimist_worker.drafters.network_drafter import AutoregressiveDrafter, MedusaDrafter
from optimist_worker.drafters.ngram import NgramDrafter
from optimist_worker.drafters.shape import DraftShape
from optimist_worker.model.fused import fuse
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import FeatureTap, Model, load_model
from optimist_worker.runner.runner import Runner
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
) -> Runner:
    """Builds a runner whose drafter is one of WAYS; `itself` drafts with the target's weights.

    Args:
        path: The target.
        way: One of WAYS.
        shape: Of the drafts.
        rule: By which they are judged.
        sizes: Of the worker.
        reads_sizes: As for DeviceState.
        most_tokens: In a pass of a draft model; few, so that it catches up in several passes.
    """
    torch.set_num_threads(1)
    target = load_model(str(path), "float64", "cpu")
    fuse(target)
    state = DeviceState(target, sizes, reads_sizes=reads_sizes)
    drafter, tap = _drafter(path, way, target, state, shape, rule, most_tokens)
    return local_runner(target, state, drafter, tap, rule)


def _drafter(
    path: Path,
    way: str,
    target: Model,
    state: DeviceState,
    shape: DraftShape,
    rule: AcceptanceRule,
    most_tokens: int,
) -> tuple[Drafter, FeatureTap | None]:
    if way == "ngram":
        return NgramDrafter(state.table, shape.num_tokens), None
    tap = FeatureTap(target.module, None) if way in ("medusa", "eagle") else None
    if way == "medusa":
        heads = random_medusa(target)
        return (MedusaDrafter(heads, state.table, shape, state.sampling, torch.float64, rule), tap)
    if way == "eagle":
        network = EagleNetwork(random_eagle(target), state.table, torch.float64)
        return AutoregressiveDrafter(DraftSource.EAGLE, network, shape, state.sampling, rule), tap
    kv: DraftKV = "discard" if way == "discard" else "keep_and_rollback"
    model = load_model(str(path), "float64", "cpu")
    if way != "itself":
        blur(model)
    fuse(model)
    own = DraftModelNetwork(model, state.table, target.vocab_size, most_tokens, kv)
    source = DraftSource.DRAFT_MODEL
    return AutoregressiveDrafter(source, own, shape, state.sampling, rule), None


def blur(model: Model) -> None:
    """Changes weights a little, so that a copy of the target is right now and then."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.module.parameters():
            noise = torch.empty(parameter.shape, dtype=parameter.dtype)
            parameter += noise.normal_(0.0, 0.02, generator=generator)


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
    config = LlamaConfig(
        hidden_size=size,
        intermediate_size=2 * size,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=target.vocab_size,
    )
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
