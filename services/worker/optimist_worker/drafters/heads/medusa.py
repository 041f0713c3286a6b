"""Medusa heads: several tokens ahead from one hidden state (Cai et al., arXiv 2401.10774)."""

import re

import torch
from torch import nn
from torch.nn import functional

from optimist_worker.drafters.heads.checkpoint import (
    Checkpoint,
    check_target_ids,
    fit,
    read_checkpoint,
    widen_logits,
)

_HEAD_WEIGHT = re.compile(r"(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")
_BLOCK_WEIGHT = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_AROUND = re.compile(r"^(model\.)?(medusa_heads\.)?(medusa_head\.)?")
"""Names of modules around the heads."""
_LM_HEAD = re.compile(r"lm_heads?(?:\.(\d+))?\.weight")


class MedusaHeads(nn.Module):
    """Heads on the target's last hidden state; head `i` says the token `2 + i` positions after it.

    Each head is a chain of residual layers, x + silu(linear(x)), and an output matrix of its own or
    one that all share. The layers of all heads are computed together.
    """

    target_ids: torch.Tensor | None
    """The target's token of each row of `lm_head`, int64; None: all, in order."""

    def __init__(
        self,
        num_heads: int,
        num_layers: int,
        hidden_size: int,
        vocab_size: int,
        *,
        share_lm_head: bool = False,
        target_ids: torch.Tensor | None = None,
    ) -> None:
        """Makes heads whose layers pass the hidden state on unchanged and whose outputs are zero.

        Sizes are the target's; there are `num_layers` residual layers in each head, and with
        `share_lm_head` one output matrix for all. They know the tokens `target_ids`.
        """
        super().__init__()
        self.num_heads, self.num_layers, self.vocab_size = num_heads, num_layers, vocab_size
        self.register_buffer("target_ids", target_ids, persistent=False)
        shape = (num_layers, num_heads, hidden_size)
        self.layer_weight = nn.Parameter(torch.zeros(*shape, hidden_size))
        """`[num_layers, num_heads, hidden_size, hidden_size]`, output dimension first."""
        self.layer_bias = nn.Parameter(torch.zeros(*shape))
        outputs = 1 if share_lm_head else num_heads
        num_known = vocab_size if target_ids is None else len(target_ids)
        self.lm_head = nn.Parameter(torch.zeros(outputs, num_known, hidden_size))
        """`[num_heads or 1, num_known, hidden_size]`."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns logits of the target's states after its final norm, `[num_heads, N, vocab_size]`.

        Tokens that it does not know have -inf.
        """
        return widen_logits(self.known_logits(hidden), self.target_ids, self.vocab_size)

    def known_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns those of the tokens it knows, `[num_heads, N, num_known]`."""
        states = hidden.expand(self.num_heads, -1, -1)
        for weight, bias in zip(self.layer_weight, self.layer_bias, strict=True):
            states = states + functional.silu(torch.baddbmm(bias[:, None], states, weight.mT))
        if self.lm_head.shape[0] == 1:
            return states @ self.lm_head[0].T
        return torch.bmm(states, self.lm_head.mT)


def load_medusa(
    name: str,
    hidden_size: int,
    vocab_size: int,
    dtype: torch.dtype,
    device: torch.device,
    lm_head: torch.Tensor | None = None,
) -> MedusaHeads:
    """Loads heads in the layout of FasterDecoding/Medusa or of vLLM's converted checkpoints.

    The first has `{head}.{layer}.linear.weight`, `.bias` and `{head}.{num_layers}.weight`, also
    below `medusa_head.`; the second `blocks.{head}.layers.{layer}.weight` and
    `lm_heads.{head}.weight`. One `lm_head.weight` is shared by all heads. A reduced vocabulary is
    a `token_map`, the target's tokens that the heads know: the output matrices have a row for each
    of them, or one for each of the target's tokens, of which the others are left out.

    A checkpoint without any takes `lm_head`, the target's, `[vocab_size, hidden_size]`.

    Raises:
        SetupError: It is no such checkpoint, or belongs to another target.
    """
    checkpoint = read_checkpoint(name)
    num_heads = checkpoint.size("medusa_num_heads", "num_heads")
    num_layers = checkpoint.size("medusa_num_layers", "num_hidden_layers")
    weights = {_AROUND.sub("", key): value for key, value in checkpoint.weights.items()}
    target_ids = weights.pop("token_map", None)
    truncated = checkpoint.config.get("truncated_vocab_size")
    if target_ids is None and truncated not in (None, checkpoint.config.get("vocab_size")):
        raise checkpoint.refuse("its vocabulary is reduced, and it lacks token_map, which says how")
    if target_ids is not None:
        target_ids = target_ids.to(torch.int64)
        check_target_ids(checkpoint, target_ids, vocab_size, "token_map")
    weights = {key: value.to(dtype) for key, value in weights.items()}
    parts = _parts(checkpoint, weights, num_heads, num_layers)
    outputs = {key for key in parts if key[0] == "lm_head"}
    if not outputs and lm_head is not None:
        outputs = {("lm_head", 0, 0)}
        parts["lm_head", 0, 0] = lm_head.detach().to(dtype)
    if target_ids is not None:
        for key in outputs:
            if len(parts[key]) == vocab_size:
                parts[key] = parts[key][target_ids.to(parts[key].device)]
    share = outputs == {("lm_head", 0, 0)} and num_heads > 1
    heads = MedusaHeads(
        num_heads,
        num_layers,
        hidden_size,
        vocab_size,
        share_lm_head=share,
        target_ids=target_ids,
    )
    fit(checkpoint, _stack(checkpoint, parts, heads), heads)
    return heads.to(device).eval().requires_grad_(False)


Part = tuple[str, int, int]
"""What a weight is ("weight", "bias" or "lm_head"), its head and its layer."""


def _parts(
    checkpoint: Checkpoint, weights: dict[str, torch.Tensor], num_heads: int, num_layers: int
) -> dict[Part, torch.Tensor]:
    parts: dict[Part, torch.Tensor] = {}
    for key, value in weights.items():
        part = _part(key, num_layers)
        if part is None or part[1] >= num_heads or part[2] >= max(num_layers, 1):
            raise checkpoint.refuse(
                f"it has a weight {key}, which {num_heads} heads of {num_layers} layers do not have"
            )
        parts[part] = value
    return parts


def _part(key: str, num_layers: int) -> Part | None:
    if match := _HEAD_WEIGHT.fullmatch(key):
        head, layer = int(match[1]), int(match[2])
        if match[3] == "weight":
            return ("lm_head", head, 0) if layer == num_layers else None
        return match[3].removeprefix("linear."), head, layer
    if match := _BLOCK_WEIGHT.fullmatch(key):
        return match[3], int(match[1]), int(match[2])
    if match := _LM_HEAD.fullmatch(key):
        return "lm_head", int(match[1] or 0), 0
    return None


def _stack(
    checkpoint: Checkpoint, parts: dict[Part, torch.Tensor], heads: MedusaHeads
) -> dict[str, torch.Tensor]:
    """Returns the parts stacked as the module has them; layers without a bias get zeros."""
    hidden_size = heads.lm_head.shape[2]
    zeros = torch.zeros(hidden_size, dtype=next(iter(parts.values())).dtype)

    def collect(kind: str, head: int, layer: int) -> torch.Tensor:
        part = parts.get((kind, head, layer), zeros if kind == "bias" else None)
        shape = [heads.lm_head.shape[1] if kind == "lm_head" else hidden_size]
        shape += [] if kind == "bias" else [hidden_size]
        if part is None:
            raise checkpoint.refuse(f"it lacks the {kind} of head {head}, layer {layer}")
        if list(part.shape) != shape:
            raise checkpoint.refuse(
                f"the {kind} of head {head}, layer {layer} has the shape {list(part.shape)} and "
                f"not {shape}; it belongs to another target model"
            )
        return part

    def stack(kind: str, num_heads: int, layer: int = 0) -> torch.Tensor:
        return torch.stack([collect(kind, head, layer) for head in range(num_heads)])

    layers, number = range(heads.num_layers), heads.num_heads
    return {
        "layer_weight": torch.stack([stack("weight", number, layer) for layer in layers]),
        "layer_bias": torch.stack([stack("bias", number, layer) for layer in layers]),
        "lm_head": stack("lm_head", heads.lm_head.shape[0]),
    }
