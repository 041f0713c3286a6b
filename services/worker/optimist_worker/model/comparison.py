"""Whether a kind of model computes through our blocks what it computes in transformers.

A small model of the config's kind runs both ways: all texts whole, by eager attention; and by our
own in pieces, two rows in a pass, with a tree of drafts. What a kind of model does beside the
attention that we compute (masks, windows, biases, states that go from token to token) shows here.
"""

from dataclasses import replace
from typing import Any

import torch
from transformers import AttentionInterface

from optimist_common.errors import SetupError
from optimist_common.model_files.tokenizer import explained
from optimist_worker.core.attention.paged_attention import (
    ATTEND,
    NAME,
    WRITE,
    AttentionBatch,
    KVPool,
    LayerSpec,
    paged_attention,
)
from optimist_worker.core.operation import by_plain_pytorch
from optimist_worker.core.recurrence.layers import find_recurrent, replace_recurrent
from optimist_worker.core.recurrence.rows import RecurrentPass
from optimist_worker.core.recurrence.scan import SCAN
from optimist_worker.core.recurrence.states import StatePool
from optimist_worker.model.fit import quiet
from optimist_worker.model.miniature import build_miniature, shrink
from optimist_worker.model.probe import probe_layers
from optimist_worker.model.source import ModelSource

_MOST_DIFFERENT = 1e-3
"""Of a layer's outputs or the logits, as a share of them."""

_LENGTH = 14
_BLOCK_SIZE = 16
# Text 0 has 12 tokens and then drafts: its own next two, and beside them text 1's next one.
_KNOWN, _FIRST_END, _OTHER_END = 12, 7, 4
_PASSES = (
    [(0, at) for at in range(_FIRST_END)] + [(2, at) for at in range(_OTHER_END)],
    [(0, at) for at in range(_FIRST_END, _LENGTH)]
    + [(1, _KNOWN)]
    + [(2, at) for at in range(_OTHER_END, _LENGTH)],
)
"""Text and position of each token of each pass."""


@torch.inference_mode()
def compare_kind(source: ModelSource) -> None:
    """Compares a small model of a source's kind with itself in transformers.

    Raises SetupError, which says which layer differs, if it does not compute the same.
    """
    AttentionInterface.register(NAME, paged_attention)
    with explained(f"{source.kind} cannot be compared with what transformers computes"):
        small = replace(source, config=shrink(source.config))
        with source.built():
            module = build_miniature(small.config, NAME)
        layers = probe_layers(small, module)
        texts = _texts(small.text_config.vocab_size)
        outputs = _Outputs(module)
        module.set_attn_implementation("eager")
        with quiet():
            module(input_ids=texts, use_cache=False)
        wanted = outputs.take()
        module.set_attn_implementation(NAME)
        named = _recurrent_passes(module)
        with by_plain_pytorch(WRITE, ATTEND, SCAN):
            for tokens, batch, more in zip(_PASSES, _batches(layers), named, strict=True):
                module(
                    input_ids=texts[_indices(tokens)][None],
                    position_ids=batch.positions[None],
                    use_cache=False,
                    paged=batch,
                    **more,
                )
        found = outputs.take()
    for layer, *both in zip(outputs.layers, wanted, found, strict=True):
        if not _is_same(*both):
            what = "its logits differ" if layer is None else f"layer {layer} gives something else"
            raise SetupError(
                f"{source.kind} cannot be served, since it would not compute what it computes in "
                f"transformers: {what}"
            )


def _texts(vocab_size: int) -> torch.Tensor:
    texts = torch.randint(3, vocab_size, (3, _LENGTH), generator=torch.Generator().manual_seed(1))
    texts[1, :_KNOWN] = texts[0, :_KNOWN]
    return texts


def _batches(layers: list[LayerSpec]) -> list[AttentionBatch]:
    """Returns the batches of both passes, with KV memory of their own."""
    pool = KVPool(layers, 2, _BLOCK_SIZE, torch.float32, torch.device("cpu"))
    ends, tables = (_FIRST_END, _OTHER_END), torch.tensor([[0], [1]])
    first = AttentionBatch.of_rows(pool, (0, 0), ends, tables)
    second = AttentionBatch.of_rows(pool, ends, (_LENGTH + 1, _LENGTH), tables)
    # The last three tokens of the first row are the tree: one below the other, and one beside.
    drafts = slice(_KNOWN - _FIRST_END, _LENGTH + 1 - _FIRST_END)
    second.tree_starts[0] = second.positions[drafts][2] = _KNOWN
    second.ancestors = torch.zeros_like(second.positions)
    second.ancestors[drafts] = torch.tensor([0b001, 0b011, 0b100])
    return [first, second]


def _recurrent_passes(module: Any) -> list[dict[str, RecurrentPass]]:
    """Returns what both passes bring for recurrent layers, which compute by it from now on."""
    specs = find_recurrent(module)
    if not specs:
        return [{}, {}]
    replace_recurrent(module)
    pool = StatePool(specs, 2, torch.float32, torch.device("cpu"))
    slots, none = torch.arange(2), torch.zeros(2, dtype=torch.int64)
    ends, others = torch.tensor([_FIRST_END, _OTHER_END]), torch.tensor([_KNOWN, _LENGTH])
    parents = torch.tensor([[-1, 0, -1]]).expand(2, -1)
    first = RecurrentPass(pool, slots, ends, none, None)
    second = RecurrentPass(pool, slots, others - ends, torch.tensor([3, 0]), parents)
    return [{"recurrent": first}, {"recurrent": second}]


class _Outputs:
    """What the parts of a model that have a layer's number, and the whole of it, return."""

    def __init__(self, module: Any) -> None:
        parts = [(part.layer_idx, part) for part in module.modules() if _has_number(part)]
        parts.sort(key=lambda pair: pair[0])
        self.layers = [*(layer for layer, _ in parts), None]
        """Number of each part's layer; None is the model."""
        self._noted: dict[int, list[Any]] = {}
        for number, (_, part) in enumerate([*parts, (None, module)]):
            part.register_forward_hook(self._hook(number))

    def _hook(self, number: int) -> Any:
        def note(part: Any, arguments: Any, output: Any) -> None:
            first = output if isinstance(output, torch.Tensor) else output[0]
            self._noted.setdefault(number, []).append(first)

        return note

    def take(self) -> list[torch.Tensor | None]:
        """Returns each part's outputs of the tokens of `_PASSES`, and forgets them.

        None for parts that did not run, or not once per pass, or by no token.
        """
        noted, self._noted = self._noted, {}
        return [_of_tokens(noted.get(number, [])) for number in range(len(self.layers))]


def _has_number(part: Any) -> bool:
    return type(getattr(part, "layer_idx", None)) is int


def _of_tokens(outputs: list[Any]) -> torch.Tensor | None:
    shapes = [output.shape[:2] for output in outputs if isinstance(output, torch.Tensor)]
    if shapes == [(3, _LENGTH)]:
        return torch.cat([outputs[0][_indices(tokens)] for tokens in _PASSES])
    if shapes == [(1, len(tokens)) for tokens in _PASSES]:
        return torch.cat([output[0] for output in outputs])
    return None


def _indices(tokens: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [text for text, _ in tokens], [at for _, at in tokens]


def _is_same(wanted: torch.Tensor | None, found: torch.Tensor | None) -> bool:
    if wanted is None or found is None:
        return True
    return float((wanted - found).norm()) <= _MOST_DIFFERENT * float(wanted.norm())
