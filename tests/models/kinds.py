"""Small random checkpoints of every kind of decoder that transformers knows."""

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from optimist_worker.model.miniature import build_miniature, shrink

_WINDOW = {"sliding_window": 6}
_CONVOLUTIONS: dict[str, Any] = {"layer_types": ["conv", "full_attention"] * 2}
_CONVOLUTIONS |= {"num_hidden_layers": 4}
_FIELDS: dict[str, dict[str, Any]] = {
    # Their classes cannot be built, or not run, from what they have by default.
    "nemotron": {"num_key_value_heads": 8},
    "hunyuan_v1_dense": {"head_dim": 64},
    "hunyuan_v1_moe": {"head_dim": 64},
    "ministral": {"head_dim": 64},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
}
_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2 with a window": ("qwen2", {**_WINDOW, "use_sliding_window": True}),
    "qwen2_moe with a window": (
        "qwen2_moe",
        {**_WINDOW, "use_sliding_window": True},
    ),
    "phimoe with a window": ("phimoe", _WINDOW),
    "phimoe with a window as long as its texts": ("phimoe", {"sliding_window": 4096 * 32}),
    "mixtral with a window": ("mixtral", _WINDOW),
    "phi3 with a window": ("phi3", _WINDOW),
    "starcoder2 with a window": ("starcoder2", _WINDOW),
    "falcon with alibi": ("falcon", {"alibi": True}),
    "gpt_neox without parallel layers": ("gpt_neox", {"use_parallel_residual": False}),
    "stablelm with parallel layers": ("stablelm", {"use_parallel_residual": True}),
    "stablelm with norms of heads": ("stablelm", {"qk_layernorm": True}),
    "lfm2 with convolutions": ("lfm2", {"full_attn_idxs": [1, 3]}),
    "lfm2_moe with convolutions": ("lfm2_moe", _CONVOLUTIONS),
    "bert as a decoder": ("bert", {"is_decoder": True}),
    "roberta as a decoder": ("roberta", {"is_decoder": True}),
}
NAMES = (*sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), *_VARIANTS)


def small_config(name: str) -> Any:
    """Returns the small config of a name in NAMES."""
    kind, fields = _VARIANTS.get(name, (name, {}))
    return shrink(CONFIG_MAPPING[kind](**_FIELDS.get(kind, {}) | fields))


def small_checkpoint(name: str, directory: Path) -> Path:
    """Saves a checkpoint of random weights; raises whatever transformers does."""
    config = small_config(name)
    module = build_miniature(config, "eager")
    module.generation_config.eos_token_id = None
    path = directory / name.replace(" ", "-")
    module.save_pretrained(path)
    return path


@torch.inference_mode()
def expected_text(module: Any, prompt: list[int], number: int) -> list[int]:
    """Returns the likeliest tokens that follow, each by a pass over the whole text."""
    text = list(prompt)
    for _ in range(number):
        logits = module(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
        text.append(int(logits.argmax()))
    return text[len(prompt) :]
