"""A transformers decoder whose attention reads our blocks."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from optimist_common.model_files.directory import check_model
from optimist_worker.core.attention.paged_attention import NAME, LayerSpec, paged_attention
from optimist_worker.core.batch.flat_batch import FlatBatch
from optimist_worker.model.comparison import compare_kind
from optimist_worker.model.division import StageCut, StagePosition, check_division, plan_cut
from optimist_worker.model.fit import check_fit, check_packages
from optimist_worker.model.loading import (
    choose_dtype,
    load_config,
    load_weights,
    make_dummy_weights,
    take_device,
)
from optimist_worker.model.probe import probe_layers
from optimist_worker.model.tokenizer import end_token_id

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Model:
    """Weights, and what the worker has to know about them."""

    name: str
    module: Any
    layers: list[LayerSpec]
    """Of the whole model; layers of other stages keep nothing here."""
    vocab_size: int
    max_position_embeddings: int
    eos_token_ids: list[int]
    dtype: torch.dtype
    device: torch.device
    cut: StageCut | None = None
    """Which part of a pipeline it is; None: the whole model."""

    @property
    def num_parameters(self) -> int:
        """Number of weights, tied ones once."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @torch.inference_mode()
    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Runs one pass; returns the logits asked for, `[num_logits, vocab_size]`."""
        output = self.module(
            input_ids=batch.input_ids[None],
            position_ids=batch.positions[None],
            logits_to_keep=batch.logits_indices,
            use_cache=False,
            paged=batch.attention,
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
        device_name: `cpu`, `cuda`, `cuda:N`, `auto` or `auto:N`.
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
    config = load_config(name, flag)
    check_packages(name, flag, config, device)
    has_kernels = kernels and tensor_parallel_size == 1
    dtype = choose_dtype(name, flag, dtype_name, device, config, has_kernels=has_kernels)
    text_config = config.get_text_config()
    if tensor_parallel_size > 1:
        size_flag = "--tensor-parallel-size"
        if flag == "--drafter-model":
            size_flag = "--drafter-tensor-parallel-size"
        check_division(name, text_config, tensor_parallel_size, size_flag)
    AttentionInterface.register(NAME, paged_attention)
    check_fit(name, flag, config, dtype, device, has_weights=not dummy_weights)
    compare_kind(name, flag, config)
    cut = None if stage is None else plan_cut(name, config, stage)
    if dummy_weights:
        module = make_dummy_weights(name, flag, config, dtype, device)
        if cut is not None:
            cut.remove_others(module)
    else:
        module = load_weights(name, flag, config, dtype, device, tensor_parallel_size, cut)
    module.eval().requires_grad_(False)
    own = range(text_config.num_hidden_layers)
    vocab_size = 0
    if cut is not None:
        cut.close_gaps(module)
        own, vocab_size = cut.layers, cut.vocab_size
    vocab_size = vocab_size or module.get_output_embeddings().weight.shape[0]
    return Model(
        name=f"{name} (dummy weights)" if dummy_weights else name,
        module=module,
        layers=probe_layers(name, flag, module, own, text_config),
        vocab_size=vocab_size,
        max_position_embeddings=_max_positions(text_config),
        eos_token_ids=_eos_token_ids(name, module, vocab_size),
        dtype=dtype,
        device=device,
        cut=cut,
    )


def _max_positions(config: Any) -> int:
    """Returns how many positions the model knows without changing its rotary frequencies.

    LongRoPE switches them for long sequences, which no mixed batch can do per row.
    """
    longest = int(getattr(config, "max_position_embeddings", 0) or 0)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        longest = int(rope.get("original_max_position_embeddings") or longest)
    return longest or 2**31 - 1


def _eos_token_ids(name: str, module: Any, vocab_size: int) -> list[int]:
    """Returns the tokens that end a text, of the first that names one that the model has."""
    for config in (module.generation_config, module.config, module.config.get_text_config()):
        ids = getattr(config, "eos_token_id", None)
        named = [] if ids is None else ids if isinstance(ids, list) else [ids]
        known = [token_id for token_id in named if 0 <= token_id < vocab_size]
        if len(known) < len(named):
            logger.warning(
                "%s: eos_token_id is %s, and tokens are from 0 to %d; what is not is dropped",
                *(name, ids, vocab_size - 1),
            )
        if known:
            return known
    token_id = end_token_id(name)
    return [] if token_id is None or token_id >= vocab_size else [token_id]


class FeatureTap:
    """Keeps the features of the last pass for the draft heads.

    They are the hidden states after the final norm, or the outputs of some decoder layers one
    after the other (EAGLE-3).
    """

    def __init__(self, module: Any, layers: tuple[int, ...] | None) -> None:
        """Hooks into a model.

        Args:
            module: A causal language model of transformers.
            layers: Decoder layers whose outputs are wanted; None: the last hidden state.
        """
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
        """Returns the features of the last pass and forgets them.

        Returns:
            `[num_tokens, dim]`.
        """
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _forget(self, module: Any, inputs: Any) -> None:
        self._parts = []

    def _note(self, module: Any, inputs: Any, output: Any) -> None:
        hidden = output if isinstance(output, torch.Tensor) else output[0]
        self._parts.append(hidden[0])
