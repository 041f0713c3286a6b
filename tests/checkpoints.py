"""Small random checkpoints of several families, saved as a user would have them."""

from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB_SIZE = 320
SLIDING_WINDOW = 24

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Gemma scales its embeddings, so that tied random weights would repeat the last token for ever.
_GEMMA: dict[str, Any] = {**_COMMON, "head_dim": 16, "tie_word_embeddings": False}
_SLIDING: dict[str, Any] = {
    "sliding_window": SLIDING_WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "query_pre_attn_scalar": 16,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _COMMON),
    "qwen2": ("Qwen2Config", _COMMON),
    "qwen3": ("Qwen3Config", {**_COMMON, "head_dim": 24}),
    "mistral": ("MistralConfig", {**_COMMON, "sliding_window": SLIDING_WINDOW, "head_dim": 16}),
    "gemma": ("GemmaConfig", _GEMMA),
    "gemma2": ("Gemma2Config", {**_GEMMA, **_SLIDING, "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3TextConfig", {**_GEMMA, **_SLIDING}),
}


def tiny_checkpoint(directory: Path, family: str) -> Path:
    """Saves a checkpoint of a family in FAMILIES with fixed random weights.

    Args:
        directory: Where to put it, in a folder of its own.
        family: A key of FAMILIES.

    Returns:
        The folder with config.json and model.safetensors; it has no tokenizer.
    """
    class_name, options = FAMILIES[family]
    config = getattr(transformers, class_name)(**options)
    auto_model: Any = transformers.AutoModelForCausalLM
    model = auto_model.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(20261121)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Wide enough that the most likely token stands out and depends on the context.
            if "norm" not in name:
                parameter.normal_(0.0, 0.2, generator=generator)
    path = directory / family
    model.save_pretrained(path)
    return path
