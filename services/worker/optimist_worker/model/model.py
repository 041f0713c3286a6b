"""A transformers decoder whose attention reads our blocks."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface

from optimist_common.model_files.directory import check_model
from optimist_common.model_files.end_tokens import read_end_tokens
from optimist_worker.core.attention.paged_attention import NAME, LayerSpec, paged_attention
from optimist_worker.core.batch.flat_batch import FlatBatch
from optimist_worker.core.recurrence.layers import find_recurrent, replace_recurrent
from optimist_worker.core.recurrence.states import StateSpec
from optimist_worker.model.comparison import compare_kind
from optimist_worker.model.division import (
    StageCut,
    StagePosition,
    check_divisible,
    check_division,
    plan_cut,
)
from optimist_worker.model.fit import check_fit
from optimist_worker.model.loading import (
    choose_dtype,
    load_weights,
    make_dummy_weights,
    take_device,
)
from optimist_worker.model.packed_checkpoint import open_packed
from optimist_worker.model.probe import probe_layers
from optimist_worker.model.source import read_source

_MOST_POSITIONS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Model:
    """Weights, and what the worker has to know about them."""

    name: str
    module: Any
    layers: list[LayerSpec]
    """Of the whole model; layers of other stages, and recurrent ones, keep nothing here."""
    vocab_size: int
    max_position_embeddings: int
    eos_token_ids: list[int]
    dtype: torch.dtype
    device: torch.device
    cut: StageCut | None = None
    """Which part of a pipeline it is; None: the whole model."""
    states: dict[int, StateSpec] = field(default_factory=dict)
    """What recurrent layers keep, by their numbers."""

    @property
    def num_parameters(self) -> int:
        """Number of weights, tied ones once."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @torch.inference_mode()
    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Runs one pass; returns the logits asked for, `[num_logits, vocab_size]`."""
        named = {} if batch.recurrent is None else {"recurrent": batch.recurrent}
        output = self.module(
            input_ids=batch.input_ids[None],
            position_ids=batch.positions[None],
            logits_to_keep=batch.logits_indices,
            use_cache=False,
            paged=batch.attention,
            **named,
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def load_model(
    name: str,
    dtype_name: str,
    device_name: str,
    *,
    dummy_weights: bool = False,
    tensor_parallel_size: int = 1,
    stage: StagePosition | None = None,
    flag: str = "--model",
    kernels: bool = True,
) -> Model:
    """Loads a directory or hub name with safetensors weights; runs no code of the checkpoint.

    Args:
        name: Directory or hub name.
        dtype_name: A floating-point dtype of PyTorch, or `auto`.
        device_name: See `choose_device`.
        dummy_weights: Makes random weights from config.json instead; the model's name says so.
        tensor_parallel_size: Ranks that share each layer; all of them call this.
        stage: Which part of a pipeline is wanted; None: the whole model.
        flag: Setting that named the model, for messages.
        kernels: Our own may compute it; `auto` goes by that.

    Raises:
        SetupError: It is missing, incomplete, cannot be divided among the ranks, or is of a kind
            whose attention is not the usual one; or it needs another dtype or device.
    """
    check_model(name, flag, needs_weights=not dummy_weights)
    device = take_device(device_name)
    source = read_source(name, flag)
    packed = open_packed(source, device, has_weights=not dummy_weights)
    has_kernels = kernels and tensor_parallel_size == 1
    dtype = choose_dtype(source, dtype_name, device, has_kernels=has_kernels)
    text_config = source.text_config
    if stage is not None:
        check_divisible(source, "--pipeline-parallel-size")
    if tensor_parallel_size > 1:
        check_divisible(source, "--tensor-parallel-size")
        check_division(name, text_config, tensor_parallel_size)
    AttentionInterface.register(NAME, paged_attention)
    check_fit(source, dtype, device, packed, has_weights=not dummy_weights)
    compare_kind(source)
    cut = None if stage is None else plan_cut(source, stage)
    if dummy_weights:
        module = make_dummy_weights(source, dtype, device)
        if cut is not None:
            cut.remove_others(module)
    else:
        module = load_weights(source, dtype, device, packed, tensor_parallel_size, cut)
    module.eval().requires_grad_(False)
    if cut is not None:
        cut.close_gaps(module)
    layers = probe_layers(source, module, None if cut is None else cut.layers)
    states = find_recurrent(module)
    replace_recurrent(module)
    vocab_size = cut.vocab_size if cut else module.get_output_embeddings().weight.shape[0]
    return Model(
        name=f"{name} (dummy weights)" if dummy_weights else name,
        module=module,
        layers=layers,
        vocab_size=vocab_size,
        max_position_embeddings=known_positions(text_config),
        eos_token_ids=read_end_tokens(
            name, flag, vocab_size, getattr(text_config, "eos_token_id", None)
        ),
        dtype=dtype,
        device=device,
        cut=cut,
        states=states,
    )


def known_positions(config: Any) -> int:
    """Returns how many positions a decoder knows without changing its rotary frequencies.

    LongRoPE and dynamic NTK scaling change them for long sequences, which no mixed batch can do for
    one row: they have the positions before that. YaRN and linear scaling multiply the positions by
    a factor, which `max_position_embeddings` need not include. It does beside parameters for each
    type of layer, as Gemma 3 has.
    """
    longest = int(getattr(config, "max_position_embeddings", 0) or 0)
    rope = getattr(config, "rope_parameters", None) or {}
    of_types = [one for one in rope.values() if isinstance(one, dict)]
    # Where there are several places for it, transformers takes this one.
    outer = None if of_types else getattr(config, "original_max_position_embeddings", None)
    for one in of_types or [rope]:
        kind, factor = one.get("rope_type"), one.get("factor") or 1.0
        original = int(outer or one.get("original_max_position_embeddings") or longest)
        if kind == "longrope":
            longest = min(longest, original)
        elif kind == "yarn":
            longest = max(longest, int(original * factor))
        elif kind == "linear" and not of_types:
            longest = max(longest, int(longest * factor))
    return min(longest or _MOST_POSITIONS, _MOST_POSITIONS)


class FeatureTap:
    """Keeps the features of the last pass for the draft heads.

    They are the hidden states after the final norm, or the outputs of some decoder layers one
    after the other (EAGLE-3).
    """

    def __init__(self, module: Any, layers: tuple[int, ...] | None) -> None:
        """Hooks into decoder layers of a model of transformers; None: its last hidden state."""
        self._parts: list[torch.Tensor] = []
        base = module.base_model
        # A pass that has failed leaves its features behind.
        base.register_forward_pre_hook(self._forget)
        if layers is None:
            base.register_forward_hook(self._note)
            return
        for number in layers:
            base.layers[number].register_forward_hook(self._note)

    def take(self) -> torch.Tensor:
        """Returns the features of the last pass, `[num_tokens, dim]`, and forgets them."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _forget(self, module: Any, inputs: Any) -> None:
        self._parts = []

    def _note(self, module: Any, inputs: Any, output: Any) -> None:
        hidden = output if isinstance(output, torch.Tensor) else output[0]
        self._parts.append(hidden[0])
