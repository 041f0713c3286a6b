"""Ways to take drafts back in recurrent layers, simulated: what each keeps, and how long it takes.

Served is the last one, `replay`; docs/adr/0023-recurrent-layers.md says why.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.plan import Sizes, WindowUpdate
from optimist_worker.core.recurrence.scan import move
from optimist_worker.core.recurrence.states import StateSpec, state_bytes
from optimist_worker.execution.executor import LocalExecutor
from optimist_worker.execution.step import Step
from optimist_worker.grammar.masks import Masks
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import load_model
from optimist_worker.runner.cost import admit_alone, plan_row
from optimist_worker.runner.runner import Engine, Runner

CHOSEN = "replay"
WAYS = {"state per draft": 1, "checkpoints": 8, CHOSEN: 0}
"""Drafts from one state that is kept to the next; 0: no state is kept."""
_MOST_LAYERS = 4
"""That are timed, each in memory of its own; all are alike."""


@dataclass(frozen=True, slots=True)
class _Shape:
    num_layers: int
    spec: StateSpec
    key_heads: int = 0


_SHAPES = {
    "LFM2-1.2B": _Shape(10, StateSpec(2, 2048)),
    "Qwen3.5-9B": _Shape(24, StateSpec(3, 8192, (32, 128, 128)), 16),
}
SHAPES = tuple(_SHAPES)


class Cost(NamedTuple):
    """Of the recurrent layers in a pass over one request's drafts, in float32."""

    state_mib: float
    """Of the request's state."""
    kept_mib: float
    """What is kept beside it until the drafts are judged."""
    pass_ms: float
    """What convolutions and delta rules take, without the products before and after them."""
    settle_ms: float
    """What it takes to reach the state after the accepted drafts."""


class _Layer:
    """One layer of a request: its state, the inputs of the drafts, and what a way keeps."""

    def __init__(self, shape: _Shape, num_drafts: int) -> None:
        spec = shape.spec
        self.window = torch.randn(spec.num_inputs, spec.num_channels)
        self.inputs = torch.randn(num_drafts, spec.num_channels)
        self.weight = torch.randn(spec.num_inputs + 1, spec.num_channels)
        self.matrices: Tensor | None = None
        self.kept: list[Tensor] = []
        """States of both kinds in turn."""
        if spec.heads is not None:
            heads, key_dim, value_dim = spec.heads
            self.matrices = torch.randn(heads, key_dim, value_dim)
            # As long as real ones, with which no state grows.
            self.keys = torch.randn(num_drafts, shape.key_heads, key_dim) / key_dim**0.5
            self.values = torch.randn(num_drafts, heads, value_dim)
            self.decays, self.rates = torch.rand(2, num_drafts, heads)
            self.shared = heads // shape.key_heads

    def run(self, every: int) -> None:
        """Goes over the drafts and keeps a state after each `every` of them."""
        self.kept = []
        whole = torch.cat([self.window, self.inputs])
        own = None if self.matrices is None else self.matrices.clone()
        width = len(self.weight)
        for draft in range(len(self.inputs)):
            (whole[draft : draft + width] * self.weight).sum(0)
            if own is not None:
                key = self._key(draft)
                known = (key[:, None] @ own)[:, 0] * self.decays[draft, :, None]
                self.values[draft] = (self.values[draft] - known) * self.rates[draft, :, None]
                self._move(own, draft)
                key[:, None] @ own
            if every and (draft + 1) % every == 0:
                self.kept.append(whole[draft + 1 : draft + width].clone())
                self.kept += [] if own is None else [own.clone()]

    def settle(self, every: int, num_accepted: int) -> None:
        """Goes on from the last state that is kept before the last accepted draft."""
        first = num_accepted // every * every if every else 0
        whole = torch.cat([self.window, self.inputs[:num_accepted]])
        self.window = whole[len(whole) - len(self.window) :].clone()
        if self.matrices is not None:
            if first:
                self.matrices.copy_(self.kept[2 * (first // every) - 1])
            for draft in range(first, num_accepted):
                self._move(self.matrices, draft)

    def kept_bytes(self, every: int) -> int:
        """What a way keeps of the drafts; where it replays also what moves a state over them."""
        tensors = list(self.kept)
        if every != 1:
            tensors.append(self.inputs)
            if self.matrices is not None:
                tensors += [self.keys, self.values, self.decays]
        return sum(each.nbytes for each in tensors)

    def _key(self, draft: int) -> Tensor:
        key: Tensor = self.keys[draft].repeat_interleave(self.shared, 0)
        return key

    def _move(self, own: Tensor, draft: int) -> None:
        move(own, self._key(draft), self.values[draft], self.decays[draft])


@torch.inference_mode()
def measure_way(name: str, way: str, num_drafts: int, num_rounds: int) -> Cost:
    """Times a chain of drafts of one request, a third of them rejected; the best round counts."""
    shape, every = _SHAPES[name], WAYS[way]
    number = min(shape.num_layers, _MOST_LAYERS)
    factor = shape.num_layers / number
    layers = [_Layer(shape, num_drafts) for _ in range(number)]
    passes, settles = [], []
    for _ in range(num_rounds):
        begin = time.perf_counter()
        for layer in layers:
            layer.run(every)
        middle = time.perf_counter()
        for layer in layers:
            layer.settle(every, num_drafts - num_drafts // 3)
        passes.append(middle - begin)
        settles.append(time.perf_counter() - middle)
    specs = dict.fromkeys(range(shape.num_layers), shape.spec)
    kept = sum(layer.kept_bytes(every) for layer in layers) * factor
    return Cost(
        state_bytes(specs, torch.float32) / 2**20,
        kept / 2**20,
        1e3 * factor * min(passes),
        1e3 * factor * min(settles),
    )


_SMALL: dict[str, Any] = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128}
_SMALL |= {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
_SMALL |= {"max_position_embeddings": 1024, "tie_word_embeddings": False, "eos_token_id": None}
_LINEAR = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2}
_LINEAR |= {"linear_num_value_heads": 4, "head_dim": 16}
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "lfm2": ("Lfm2Config", {"full_attn_idxs": [1, 3]}),
    "qwen3_5": (
        "Qwen3_5TextConfig",
        {**_LINEAR, "layer_types": ["linear_attention", "full_attention"] * 2},
    ),
}
FAMILIES = tuple(_FAMILIES)


class Copied(NamedTuple):
    """A text that was generated with predictions of itself, in which some tokens are wrong."""

    tokens_per_pass: float
    is_same: bool
    """As without drafts."""


def copy_text(family: str, num_drafts: int, num_tokens: int, wrong_every: int) -> Copied:
    """Generates by a small random model, greedily in float32, without and with drafts."""
    class_name, fields = _FAMILIES[family]
    config = getattr(transformers, class_name)(**_SMALL | fields)
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        model = load_model(directory, "float32", "cpu", dummy_weights=True)
        sizes = Sizes(-(-2 * num_tokens // 16), 16, 1, 1024, 1024)
        state = DeviceState(model, sizes)
        step = Step(model, state, None, None, AcceptanceRule.COUPLED)
        executor = LocalExecutor(step, Masks(directory, model), model.device)
        runner = Runner(Engine(model, state, executor))
    plain, _ = _generate(runner, num_tokens, 0, [])
    guess = [
        token if at % wrong_every else (token + 1) % model.vocab_size
        for at, token in enumerate(plain, 1)
    ]
    found, num_passes = _generate(runner, num_tokens, num_drafts, guess)
    return Copied(num_tokens / num_passes, found == plain)


def _generate(
    runner: Runner, num_tokens: int, num_drafts: int, guess: Sequence[int]
) -> tuple[list[int], int]:
    """Returns a text and in how many passes it came; drafts are what is guessed there."""
    prompt = list(range(5, 21))
    admit_alone(runner, prompt)
    plan = plan_row(len(prompt), 0, range(runner.engine.state.sizes.num_blocks))
    output: list[int] = []
    number = 0
    while len(output) < num_tokens:
        result = runner.execute(plan)
        output += result.token_ids.tolist()
        number += 1
        drafts = list(guess[len(output) : len(output) + num_drafts])
        windows = [WindowUpdate(0, len(output), drafts)] if drafts else []
        plan = plan_row(1, len(drafts))._replace(windows=windows)
    return output[:num_tokens], number
