"""EAGLE heads: a layer or so that goes on from the target's features, token by token.

EAGLE-1 and -2: Li et al., arXiv 2401.15077 and 2406.16858; EAGLE-3: arXiv 2503.01840.
"""

import re
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from optimist_common.model_files.tokenizer import explained
from optimist_worker.core.attention.paged_attention import NAME, LayerSpec
from optimist_worker.drafters.heads.checkpoint import (
    FLAG,
    Checkpoint,
    check_target_ids,
    fit,
    read_checkpoint,
    widen_logits,
)
from optimist_worker.model.division import whole
from optimist_worker.model.fused import fuse_layer
from optimist_worker.model.linear import Linear, lay_out
from optimist_worker.model.model import Model


class FusedLayer(nn.Module):
    """First layer of EAGLE-1 and -2: embedding and feature made one, without a norm before it."""

    def __init__(self, config: LlamaConfig, *, bias: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        layer: Any = LlamaDecoderLayer(config, 0)
        layer.input_layernorm = nn.Identity()
        self.layer = layer

    def forward(
        self, embeddings: torch.Tensor, features: torch.Tensor, **attention: Any
    ) -> torch.Tensor:
        """Returns `[batch, T, hidden_size]` of embeddings and features of that shape."""
        output: torch.Tensor = self.layer(
            self.fc(torch.cat((embeddings, features), dim=-1)), **attention
        )
        return output


class MidLayer(nn.Module):
    """First layer of EAGLE-3: attends with embedding and feature side by side, each normalised."""

    def __init__(self, config: LlamaConfig, target_size: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.hidden_size = size
        self.norm_before_residual = bool(getattr(config, "norm_before_residual", False))
        self.fc = nn.Linear(target_size, size, bias=False)
        self.hidden_norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.input_layernorm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.self_attn = LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            plain = getattr(self.self_attn, name)
            bias = plain.bias is not None
            setattr(self.self_attn, name, nn.Linear(2 * size, plain.out_features, bias=bias))
        self.post_attention_layernorm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.mlp = LlamaMLP(config)  # type: ignore[no-untyped-call]

    def forward(
        self, embeddings: torch.Tensor, features: torch.Tensor, **attention: Any
    ) -> torch.Tensor:
        """Returns `[batch, T, hidden_size]`.

        Features as wide as the target's layers together are projected first; those of the head's
        own, as wide as itself, are taken as they are.
        """
        hidden = features if features.shape[-1] == self.hidden_size else self.fc(features)
        normalised = self.hidden_norm(hidden)
        residual = normalised if self.norm_before_residual else hidden
        both = torch.cat((self.input_layernorm(embeddings), normalised), dim=-1)
        attended, _ = self.self_attn(hidden_states=both, **attention)
        hidden = residual + attended
        output: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class EagleHead(nn.Module):
    """Drafts the token after next from a feature of the target and the next token.

    The input at position p is the feature of position p with the token at p + 1. The output
    approximates the feature of p + 1: its logits say the token at p + 2, and with that token it is
    the input at position p + 1 while the target has not been there.
    """

    target_ids: torch.Tensor | None
    """The target's token of each row of `lm_head`, int64; None: all, in order."""

    def __init__(
        self,
        config: LlamaConfig,
        first: FusedLayer | MidLayer,
        embed_tokens: torch.Tensor,
        lm_head: torch.Tensor,
        *,
        norm: LlamaRMSNorm | None = None,
        target_layers: tuple[int, ...] | None = None,
        vocab_size: int,
    ) -> None:
        """Puts a head together.

        Its decoder layers, `config.num_hidden_layers` with the first, take what the first makes of
        embeddings and features: the outputs of the target's `target_layers`, or the last hidden
        state after the final norm. `embed_tokens` `[vocab_size, hidden_size]` is often the
        target's, and so is `lm_head`, `[vocab_size or draft_vocab_size, hidden_size]`, before which
        there may be a norm.
        """
        super().__init__()
        self.config, self.vocab_size, self.target_layers = config, vocab_size, target_layers
        self.first = first
        self.further = nn.ModuleList(
            LlamaDecoderLayer(config, number) for number in range(1, config.num_hidden_layers)
        )
        self.norm = nn.Identity() if norm is None else norm
        self.embed_tokens = nn.Parameter(embed_tokens, requires_grad=False)
        self.lm_head = nn.Parameter(lm_head, requires_grad=False)
        self.register_buffer("target_ids", None, persistent=False)
        self.has_own_output = True
        """Whether `lm_head` is not the target's."""
        self._output: nn.Module | None = None
        # Not moved to a dtype with the weights: its frequencies stay in float32.
        self.rotary = LlamaRotaryEmbedding(config)
        self.set_attn_implementation(NAME)

    @property
    def layers(self) -> list[LayerSpec]:
        """What each layer keeps per token, for a pool of its own."""
        config: Any = self.config
        spec = LayerSpec(config.num_key_value_heads, config.head_dim, config.head_dim)
        return [spec] * config.num_hidden_layers

    def set_attn_implementation(self, name: str) -> None:
        """Sets by which of transformers' attention functions the layers attend."""
        self.config._attn_implementation = name

    def run(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        features: torch.Tensor,
        **attention: Any,
    ) -> torch.Tensor:
        """Returns the next features, `[batch, T, hidden_size]`.

        It takes the tokens at the positions after, `[batch, T]`, features of the target,
        `[batch, T, feature_size]`, or of earlier calls, and keywords of the attention.
        """
        embeddings = functional.embedding(token_ids, self.embed_tokens)
        rotation = self.rotary(embeddings, positions)
        hidden: torch.Tensor = self.first(
            embeddings, features, position_embeddings=rotation, **attention
        )
        for layer in self.further:
            hidden = layer(hidden, position_embeddings=rotation, **attention)
        return hidden

    def fuse(self, output: nn.Module | None) -> None:
        """Lays weights out for their device, and fuses layers; it cannot be trained after that.

        The target's output matrix is used if it is laid out and the head has none of its own.
        """
        spec, size = self.layers[0], self.config.hidden_size
        if isinstance(self.first, FusedLayer):
            layer = self.first.layer
            self.first.layer = fuse_layer(layer, "the draft head", spec, size, self.rotary)
        for index, layer in enumerate(self.further):
            name = f"layer {1 + index} of the draft head"
            self.further[index] = fuse_layer(layer, name, spec, size, self.rotary)
        for parent in list(self.modules()):
            for name, child in parent.named_children():
                if type(child) is nn.Linear:
                    setattr(parent, name, lay_out(child.weight.detach(), child.bias))
        is_shared = not self.has_own_output and isinstance(output, Linear)
        self._output = output if is_shared else lay_out(self.lm_head.detach(), None)

    def known_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns those of the tokens it knows, in the order of `target_ids`, `[N, num_known]`."""
        output, normed = self._output, self.norm(hidden)
        known: torch.Tensor = normed @ self.lm_head.T if output is None else output(normed)
        return known

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns `[N, vocab_size]` over the target's tokens, -inf for those it does not know."""
        return widen_logits(self.known_logits(hidden), self.target_ids, self.vocab_size)


Weights = dict[str, torch.Tensor]

_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
TOP_NAMES = {
    "fc.weight": "first.fc.weight",
    "fc.bias": "first.fc.bias",
    "norm.weight": "norm.weight",
    "embed_tokens.weight": "embed_tokens",
    "lm_head.weight": "lm_head",
}
_NUM_TARGET_LAYERS = 3
_SIZES = ("hidden_size", "num_attention_heads", "intermediate_size")


def load_eagle(name: str, target: Model) -> EagleHead:
    """Loads an EAGLE-1, -2 or -3 head for a target.

    EAGLE-1 and -2 have `fc.weight` (and `.bias`), `layers.0.*`; EAGLE-3 has `midlayer.*` (or
    `layers.0.*` with a `hidden_norm`), `fc.weight`, `norm.weight`, `lm_head.weight` and, for a
    reduced vocabulary, `d2t` (`t2d` says the same). All may stand below `model.`. Embedding and,
    but for a reduced vocabulary, output matrix are the target's where they are absent.

    Args:
        name: Directory or hub name.
        target: Whose features it reads; the head gets its dtype and device.

    Raises:
        SetupError: It is no such checkpoint, or belongs to another target.
    """
    checkpoint = read_checkpoint(name)
    plain = {key.removeprefix("model."): value for key, value in checkpoint.weights.items()}
    offsets = plain.pop("d2t", None)
    plain.pop("t2d", None)
    is_third = any(key.startswith("midlayer.") or "hidden_norm" in key for key in plain)
    weights = {_name(key, is_third=is_third): value for key, value in plain.items()}
    weights = {key: value for key, value in weights.items() if not key.endswith("inv_freq")}
    config = _config(checkpoint, weights)
    embedding = whole(target.module.get_input_embeddings().weight)
    output = whole(target.module.get_output_embeddings().weight)
    if not is_third and config.hidden_size != output.shape[1]:
        raise checkpoint.refuse(
            f"its hidden_size is {config.hidden_size} and the target's {output.shape[1]}; "
            "it belongs to another target model"
        )
    weights.setdefault("embed_tokens", embedding)
    has_own_output = "lm_head" in weights
    if offsets is None:
        weights.setdefault("lm_head", output)
    elif "lm_head" not in weights:
        raise checkpoint.refuse("it has d2t, a reduced vocabulary, but no lm_head.weight for it")
    num_ids = output.shape[0] if offsets is None else offsets.shape[0]
    with torch.device("meta"):
        head = EagleHead(
            config,
            MidLayer(config, _NUM_TARGET_LAYERS * output.shape[1])
            if is_third
            else FusedLayer(config, bias="first.fc.bias" in weights),
            torch.empty(embedding.shape[0], config.hidden_size),
            torch.empty(num_ids, config.hidden_size),
            norm=LlamaRMSNorm(config.hidden_size, config.rms_norm_eps) if is_third else None,
            target_layers=_target_layers(checkpoint, target) if is_third else None,
            vocab_size=target.vocab_size,
        )
    for module_name, module in head.named_modules():
        # Layers with biases on queries, keys and values alone are just that, as Qwen 2's are.
        if module_name.endswith("o_proj") and f"{module_name}.bias" not in weights:
            module.register_parameter("bias", None)
    fit(checkpoint, {key: value.to(target.dtype) for key, value in weights.items()}, head)
    head.target_ids = None if offsets is None else _target_ids(checkpoint, offsets, target)
    head.rotary = LlamaRotaryEmbedding(config)
    head.has_own_output = has_own_output
    return head.to(target.device).eval().requires_grad_(False)


def _name(key: str, *, is_third: bool) -> str:
    """Returns the name that a published weight has in EagleHead."""
    if key in TOP_NAMES:
        return TOP_NAMES[key]
    if is_third:
        key = key.replace("midlayer.", "layers.0.", 1)
    match = _LAYER.fullmatch(key)
    if match is None:
        return key
    if match[1] == "0":
        return f"first.{match[2]}" if is_third else f"first.layer.{match[2]}"
    return f"further.{int(match[1]) - 1}.{match[2]}"


def _config(checkpoint: Checkpoint, weights: Weights) -> LlamaConfig:
    for field in _SIZES:
        checkpoint.size(field)
    values = {key: value for key, value in checkpoint.config.items() if key != "model_type"}
    values["attention_bias"] = any(key.endswith("q_proj.bias") for key in weights)
    values.setdefault("num_hidden_layers", 1)
    with explained(f"{FLAG}: {checkpoint.name}: its config.json is not one of a Llama"):
        config: LlamaConfig = LlamaConfig.from_dict(values)
    return config


def _target_layers(checkpoint: Checkpoint, target: Model) -> tuple[int, ...]:
    """Returns whose outputs an EAGLE-3 head reads, as indices of the target's layers.

    Its training takes the inputs of layers 2, n // 2 and n - 3. Configs may say others: inside
    `eagle_config` by index, at the top (vLLM's speculators) counted from the embedding's output.
    """
    count = target.module.config.get_text_config().num_hidden_layers
    key = "eagle_aux_hidden_state_layer_ids"
    nested, top = (checkpoint.config.get("eagle_config") or {}).get(key), checkpoint.config.get(key)
    layers = nested or [number - 1 for number in top or (2, count // 2, count - 3)]
    if len(layers) != _NUM_TARGET_LAYERS or not all(0 <= layer < count for layer in layers):
        raise checkpoint.refuse(
            f"it reads the target's layers {list(layers)}, but the target has {count}"
        )
    return tuple(layers)


def _target_ids(checkpoint: Checkpoint, offsets: torch.Tensor, target: Model) -> torch.Tensor:
    """Returns the target's token of each draft token; `d2t` says how far apart the two are."""
    target_ids = torch.arange(len(offsets)) + offsets.to(torch.int64)
    check_target_ids(checkpoint, target_ids, target.vocab_size, "d2t")
    return target_ids
