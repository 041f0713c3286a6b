"""Decoder layers of Llama-shaped families, in fewer and faster operations than transformers'.

They go into a model of transformers in the place of its own layers, so that whoever watches or cuts
the model (draft heads, pipeline stages) finds them where those were. Each is compared with the one
that it replaces, on a few tokens; where they differ, the model keeps its own.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AttentionInterface

from optimist_common.errors import SetupError, one_line
from optimist_worker.core.attention.paged_attention import (
    ATTEND,
    NAME,
    AttentionBatch,
    KVPool,
    LayerSpec,
    paged_attention,
)
from optimist_worker.core.operation import Operation
from optimist_worker.model.linear import PanelLinear, check_rounding, join
from optimist_worker.model.model import Model
from optimist_worker.model.operations import (
    ACTIVATIONS,
    ADD,
    ADD_NORM,
    GATE,
    MULTIPLY,
    NORM,
    ROTATE_AND_WRITE,
    Heads,
    Norm,
    product_addresses,
)
from optimist_worker.model.rounding import Bits

logger = logging.getLogger(__name__)

_SHIFTED = frozenset({"GemmaDecoderLayer", "Gemma2DecoderLayer", "Gemma3DecoderLayer"})
"""Layers whose norms multiply by 1 + weight."""
_LAYERS = _SHIFTED | {
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen3DecoderLayer",
}
_MOST_DIFFERENT = {torch.bfloat16: 0.03, torch.float16: 0.005}
"""Difference of what two layers add, as a share of it; 1e-4 in wider dtypes."""
_PROBE_TOKENS = 8
_NOTING = "optimist_noting"
_OPTIONS = ("scaling", "sliding_window", "softcap")


class LlamaLayer(nn.Module):
    """A decoder layer with joined projections.

    Llama (Touvron et al. 2023), Qwen 2 (biases), Qwen 3 (norms of heads), Gemma 2 and 3 (norms
    after attention and MLP, softcap). Rotary embeddings, scales and windows are those that
    transformers computes: they come with each call, or were noted from one.
    """

    def __init__(self, layer: Any, options: dict[str, Any], bits: Bits | None = None) -> None:
        """Joins the weights of a layer of a class in `_LAYERS`, of which copies are made.

        `options` is what it hands to `paged_attention` besides tensors; with `bits` the weights are
        rounded, the layer's own too.
        """
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        is_shifted = type(layer).__name__ in _SHIFTED
        self.layer_idx = attention.layer_idx
        self._head_dim = attention.head_dim
        self._options = {
            "scale": options.get("scaling", attention.head_dim**-0.5),
            "window": options.get("sliding_window"),
            "softcap": options.get("softcap"),
            "sinks": None,
        }
        self.qkv = join([attention.q_proj, attention.k_proj, attention.v_proj], bits)
        self.output = join([attention.o_proj], bits)
        self.gate_up = join([mlp.gate_proj, mlp.up_proj], bits)
        self.down = join([mlp.down_proj], bits)
        self._activate: Callable[[torch.Tensor], torch.Tensor] = mlp.act_fn
        self.query_norm, self.key_norm = (
            _norm(getattr(attention, name, None), is_shifted=is_shifted)
            for name in ("q_norm", "k_norm")
        )
        self._heads = Heads(
            attention.q_proj.out_features // attention.head_dim,
            attention.k_proj.out_features // attention.head_dim,
            self.query_norm,
            self.key_norm,
        )
        before_mlp, after_attention, after_mlp = layer.post_attention_layernorm, None, None
        if hasattr(layer, "pre_feedforward_layernorm"):
            before_mlp = layer.pre_feedforward_layernorm
            after_attention = layer.post_attention_layernorm
            after_mlp = layer.post_feedforward_layernorm
        self.before_attention = _norm(layer.input_layernorm, is_shifted=is_shifted)
        self.after_attention = _norm(after_attention, is_shifted=is_shifted)
        self.before_mlp = _norm(before_mlp, is_shifted=is_shifted)
        self.after_mlp = _norm(after_mlp, is_shifted=is_shifted)
        self._addresses: tuple[Any, ...] | None = None
        self._address = 0
        """Of the first weights when the addresses were found: a copy has others."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        paged: AttentionBatch,
        **_others: Any,
    ) -> torch.Tensor:
        """Runs the layer on `[1, num_tokens, hidden_size]`.

        Cosine and sine of each token are `[1, num_tokens, head_dim]`.
        """
        total: torch.Tensor = LAYERS(hidden_states[0], [self], position_embeddings, paged)
        return total[None]

    def compute(
        self,
        states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        paged: AttentionBatch,
    ) -> torch.Tensor:
        """Is `forward`, from one operation to the next, for states `[num_tokens, hidden_size]`."""
        pool, index = paged.pool, self.layer_idx
        keys, values = pool.keys[index], pool.values[index]
        before = self.before_attention
        projected = self.qkv(states if before is None else NORM(states, before))
        queries = ROTATE_AND_WRITE(
            projected.view(len(states), -1, self._head_dim),
            *position_embeddings,
            self._heads,
            keys,
            values,
            paged.slot_mapping,
        )
        attended = ATTEND(queries, keys, values, paged, **self._options)
        attended = attended.reshape(len(states), -1)
        states, normed = ADD_NORM(
            attended, self.output, states, self.after_attention, self.before_mlp
        )
        gated = GATE(self.gate_up(normed), self._activate)
        total: torch.Tensor = ADD(gated, self.down, states, self.after_mlp)
        return total

    @property
    def addresses(self) -> tuple[Any, ...] | None:
        """What the kernel for whole layers takes; None if it is not for this one."""
        linear = self.qkv
        address = linear.values.data_ptr() if isinstance(linear, PanelLinear) else 0
        if address != self._address:
            self._address, self._addresses = address, self._find_addresses()
        return self._addresses

    def _find_addresses(self) -> tuple[Any, ...] | None:
        linears = self.qkv, self.output, self.gate_up, self.down
        activation = ACTIVATIONS.get(type(self._activate).__name__)
        if self.after_attention is not None or self.after_mlp is not None or activation is None:
            return None
        if any(part.is_replaced for part in _PARTS):
            return None
        addresses: list[Any] = []
        for norm in (self.before_attention, self.before_mlp):
            addresses += _address(norm)
        for linear in linears:
            if not isinstance(linear, PanelLinear):
                return None
            addresses += product_addresses(linear.panels, linear.bias)
        for norm in (self.query_norm, self.key_norm):
            addresses += _address(norm)
        options = self._options
        addresses += [self._heads.num_queries, self._heads.num_keys, self._head_dim]
        addresses += [options["window"] or 0, options["scale"], options["softcap"] or 0.0]
        addresses += [activation == "gelu_tanh", self.qkv.values.dtype != torch.float32]
        return tuple(addresses)


_PARTS = (ATTEND, MULTIPLY, NORM, ROTATE_AND_WRITE, GATE)


def compute_layers(
    states: torch.Tensor,
    layers: Sequence[LlamaLayer],
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    paged: AttentionBatch,
) -> torch.Tensor:
    """Runs layers one after the other, operation by operation; see `LlamaLayer.compute`."""
    for layer in layers:
        states = layer.compute(states, position_embeddings, paged)
    return states


LAYERS = Operation("layers", compute_layers, None, "optimist_worker.cpu_kernels.launch:layers")
"""Layers in one call: between short operations, Python takes as long as they do."""


class LayerStack(nn.ModuleList):
    """Layers that a model calls as one, unless one of them is watched."""

    def __getitem__(self, index: Any) -> Any:
        """Returns for the slice of all layers, which models call one by one, what runs them all."""
        is_all = index == slice(None, len(self))
        # Hooks of a layer want to be called.
        if is_all and not any(one._forward_pre_hooks or one._forward_hooks for one in self):
            return [self.run]
        return super().__getitem__(index)

    def run(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        paged: AttentionBatch,
        **_others: Any,
    ) -> torch.Tensor:
        """Is `LlamaLayer.forward` of all layers."""
        layers: Any = list(self)
        total: torch.Tensor = LAYERS(hidden_states[0], layers, position_embeddings, paged)
        return total[None]


def _address(norm: Norm | None) -> list[Any]:
    return [0, 0.0] if norm is None else [norm.wide_weight.data_ptr(), norm.epsilon]


def _norm(norm: Any, *, is_shifted: bool) -> Norm | None:
    """Returns a norm of our own for one of transformers, or None for none."""
    if norm is None or isinstance(norm, nn.Identity):
        return None
    weight, epsilon = norm.weight.detach(), getattr(norm, "variance_epsilon", None)
    if is_shifted:
        weight = 1.0 + weight.to(torch.promote_types(weight.dtype, torch.float32))
    return Norm(weight, norm.eps if epsilon is None else epsilon)


@torch.inference_mode()
def fuse(model: Model, bits: Bits | None = None) -> None:
    """Replaces layers, final norm and output matrix of a model where that changes only the time.

    With `bits`, their weights are rounded first; those of the output matrix to 8, since it decides
    the token alone. A SetupError says that there is no layer to round or no kernel for it.

    Layers are replaced one by one, and their weights are given up, so that memory holds one layer
    twice. Layers of other families, with quantised or divided weights, and layers whose replacement
    differs by more than rounding stay; the last is logged.
    """
    if bits is not None:
        check_rounding()
    module = model.module
    found = [
        layers
        for layers in module.modules()
        if isinstance(layers, nn.ModuleList) and any(_can_fuse(layer) for layer in layers)
    ]
    if len(found) != 1:
        if bits is not None:
            raise SetupError(
                f"--quantization: {model.name} ({module.config.model_type}) has no layers of "
                "Llama's shape with plain weights; choose none"
            )
        return
    (layers,) = found
    is_shifted = any(type(layer).__name__ in _SHIFTED for layer in layers)
    num_fused, calls = 0, _note_calls(model, layers)
    for index, call in enumerate(calls):
        fused = _fuse_layer(layers[index], call, f"layer {index} of {model.name}", bits)
        num_fused += fused is not layers[index]
        layers[index] = fused
    output = module.get_output_embeddings()
    if num_fused and type(output) is nn.Linear:
        module.set_output_embeddings(join([output], None if bits is None else 8))
    if num_fused:
        parent = next(part for part in module.modules() if getattr(part, "layers", None) is layers)
        _fuse_norm(parent, model, is_shifted=is_shifted)
        # Of some families, layers of different types rotate by different angles.
        angles = {id(call.keywords["position_embeddings"]) for call in calls}
        if len(angles) == 1 and all(isinstance(layer, LlamaLayer) for layer in layers):
            parent.layers = LayerStack(layers)
    logger.info(
        "%d of %d layers of %s are fused, weights take %.1f MiB",
        *(num_fused, len(layers), model.name, _num_bytes(module) / 2**20),
    )


def fuse_layer(
    layer: Any, name: str, own: LayerSpec, hidden_size: int, rotary: nn.Module
) -> nn.Module:
    """Returns a layer of our own for one of transformers' that stands alone, or the layer itself.

    It is in eval mode, the first or only one of its pool, and keeps `own` per token.
    """
    weight = next(layer.parameters())
    device, dtype = weight.device, weight.dtype
    batch = _probe_batch([own] * (1 + layer.self_attn.layer_idx), dtype, device)
    hidden = _probe_states(hidden_size, dtype, device)
    with torch.inference_mode():
        angles = rotary(hidden, batch.positions[None])
        call = _Call(hidden, {"position_embeddings": angles, "paged": batch})
        return _fuse_layer(layer, call, name, None)


def _fuse_layer(layer: Any, call: "_Call", name: str, bits: Bits | None) -> Any:
    if not _can_fuse(layer):
        return layer
    try:
        fused = LlamaLayer(layer, call.options, bits)
        difference = call.compare(layer, fused)
    except (RuntimeError, TypeError, AttributeError, KeyError) as error:
        difference = one_line(error)
    if difference is None:
        return fused
    logger.warning("%s stays as transformers computes it, which is slower: %s", name, difference)
    return layer


class _FinalNorm(nn.Module):
    """The norm after the last layer, by our operation."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Norms `[batch, num_tokens, hidden_size]`; the worker's batch is 1, transformers' any."""
        normed: torch.Tensor = NORM(hidden.flatten(0, -2), self.norm)
        return normed.view_as(hidden)


def _fuse_norm(parent: Any, model: Model, *, is_shifted: bool) -> None:
    """Replaces the norm beside the layers; a stage that is not the last has none."""
    norm = _norm(getattr(parent, "norm", None), is_shifted=is_shifted)
    if norm is None:
        return
    fused = _FinalNorm(norm)
    states = _probe_states(len(norm.weight), model.dtype, model.device)
    wanted = parent.norm(states).double()
    difference = float((fused(states).double() - wanted).norm() / wanted.norm())
    if difference <= _MOST_DIFFERENT.get(model.dtype, 1e-4):
        parent.norm = fused
    else:
        logger.warning("the last norm of %s stays: it differs by %.3g", model.name, difference)


def _num_bytes(module: nn.Module) -> int:
    # Packed tensors have no address; what is shared is one object.
    tensors = {id(one): one for one in (*module.parameters(), *module.buffers())}
    return sum(one.numel() * one.element_size() for one in tensors.values())


def _can_fuse(layer: Any) -> bool:
    if type(layer).__name__ not in _LAYERS:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    linears = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    return all(
        type(linear) is nn.Linear and not isinstance(linear.weight, DTensor)
        for linear in (*linears, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    )


@dataclass(slots=True)
class _Call:
    """How the model calls a layer in a pass over a few tokens."""

    hidden: torch.Tensor
    keywords: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    def compare(self, layer: Any, fused: Any) -> str | None:
        """Returns how a replacement differs from a layer, or None if it does by rounding only."""
        wanted, got = (
            one(self.hidden, **self.keywords).double() - self.hidden.double()
            for one in (layer, fused)
        )
        most = _MOST_DIFFERENT.get(self.hidden.dtype, 1e-4)
        # What is added is rounded to the precision of what it is added to.
        rounding = 4 * torch.finfo(self.hidden.dtype).eps * self.hidden.double().norm()
        difference = float((wanted - got).norm())
        if difference <= most * float(wanted.norm()) + float(rounding):
            return None
        return f"the fused layer differs by {difference:.3g} of {float(wanted.norm()):.3g}"


def _note_calls(model: Model, layers: nn.ModuleList) -> list[_Call]:
    """Runs a few tokens through a model and returns how each layer is called."""
    calls: list[_Call] = []
    options: list[dict[str, Any]] = []

    def note_call(layer: Any, arguments: Any, keywords: dict[str, Any]) -> None:
        calls.append(_Call(arguments[0].clone(), keywords))

    def note_options(layer: Any, *tensors: Any, paged: AttentionBatch, **named: Any) -> Any:
        options.append({name: named[name] for name in _OPTIONS if named.get(name) is not None})
        return paged_attention(layer, *tensors, paged=paged, **named)

    module = model.module
    inputs: dict[str, Any] = {"input_ids": torch.arange(_PROBE_TOKENS, device=model.device)[None]}
    if model.cut is not None and not model.cut.position.is_first:
        width = model.cut.outline.config.get_text_config().hidden_size
        inputs = {"inputs_embeds": _probe_states(width, model.dtype, model.device)}
    batch = _probe_batch(model.layers, model.dtype, model.device)
    AttentionInterface.register(_NOTING, note_options)
    hooks = [layer.register_forward_pre_hook(note_call, with_kwargs=True) for layer in layers]
    module.set_attn_implementation(_NOTING)
    module.base_model(**inputs, position_ids=batch.positions[None], use_cache=False, paged=batch)
    module.set_attn_implementation(NAME)
    for hook in hooks:
        hook.remove()
    for call, noted in zip(calls, options, strict=True):
        call.options = noted
    return calls


def _probe_states(width: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    states = torch.arange(_PROBE_TOKENS * width, device=device).sin().to(dtype)
    return states.view(1, _PROBE_TOKENS, width)


def _probe_batch(
    layers: list[LayerSpec], dtype: torch.dtype, device: torch.device
) -> AttentionBatch:
    """Returns one row of a few tokens, with KV memory of its own."""
    pool = KVPool(layers, 1, _PROBE_TOKENS, dtype, device)
    return AttentionBatch.of_row(pool, 0, _PROBE_TOKENS)
