"""Writes trained draft heads in the layouts in which others publish theirs."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from optimist_worker.drafters.heads.eagle import TOP_NAMES, EagleHead
from optimist_worker.drafters.heads.medusa import MedusaHeads


def save_eagle(head: EagleHead, directory: Path, dtype: torch.dtype) -> None:
    """Writes an EAGLE-1 head with the target's embedding and, of a whole vocabulary, its output.

    A reduced vocabulary is written as `d2t` with the rows of the output matrix. Matrices are
    stored as `dtype`, norms and biases in float32.
    """
    names = {value: key for key, value in TOP_NAMES.items()}
    weights: dict[str, torch.Tensor] = {}
    targets = ["embed_tokens"]
    if head.target_ids is None:
        targets.append("lm_head")
    else:
        weights["d2t"] = head.target_ids.cpu() - torch.arange(len(head.target_ids))
    for key, value in head.state_dict().items():
        if key in targets:
            continue
        further = re.fullmatch(r"further\.(\d+)\.(.+)", key)
        if further is not None:
            published = f"layers.{int(further[1]) + 1}.{further[2]}"
        else:
            published = names.get(key, key.replace("first.layer.", "layers.0."))
        stored = dtype if value.dim() > 1 else torch.float32
        weights[published] = value.detach().to(stored, copy=True).contiguous()
    config: dict[str, Any] = head.config.to_diff_dict()
    config |= {"architectures": ["EagleLlamaForCausalLM"], "model_type": "llama"}
    config["bias"] = "fc.bias" in weights
    if head.target_ids is not None:
        config["draft_vocab_size"] = len(head.target_ids)
    _write(directory, "model.safetensors", weights, config)


def save_medusa(heads: MedusaHeads, directory: Path, dtype: torch.dtype) -> None:
    """Writes heads in the layout of FasterDecoding/Medusa; a shared matrix as `lm_head.weight`."""
    weights: dict[str, torch.Tensor] = {}
    for head in range(heads.num_heads):
        for layer in range(heads.num_layers):
            weights[f"{head}.{layer}.linear.weight"] = heads.layer_weight[layer, head]
            weights[f"{head}.{layer}.linear.bias"] = heads.layer_bias[layer, head]
        if heads.lm_head.shape[0] > 1 or heads.num_heads == 1:
            weights[f"{head}.{heads.num_layers}.weight"] = heads.lm_head[head]
    if heads.lm_head.shape[0] == 1 and heads.num_heads > 1:
        weights["lm_head.weight"] = heads.lm_head[0]
    stored = {key: value.detach().to(dtype, copy=True) for key, value in weights.items()}
    config = {
        "model_type": "medusa",
        "medusa_num_heads": heads.num_heads,
        "medusa_num_layers": heads.num_layers,
        "hidden_size": heads.lm_head.shape[2],
        "vocab_size": heads.vocab_size,
    }
    if heads.target_ids is not None:
        stored["token_map"] = heads.target_ids.cpu()
        config["truncated_vocab_size"] = len(heads.target_ids)
    _write(directory, "medusa_lm_head.safetensors", stored, config)


def _write(
    directory: Path, file_name: str, weights: Mapping[str, torch.Tensor], config: dict[str, Any]
) -> None:
    """Writes a head's weights, for everybody to read, and its config."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / file_name
    save_file(dict(weights), file, metadata={"format": "pt"})
    file.chmod(0o644)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
