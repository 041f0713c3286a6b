"""Small random checkpoints of several families, saved as a user would have them."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 320
SLIDING_WINDOW = 24

_COMMON: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 128}
_COMMON |= {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
_COMMON |= {"max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2}
_COMMON |= {"pad_token_id": 0}
# Gemma scales its embeddings, so that tied random weights would repeat the last token for ever.
_GEMMA: dict[str, Any] = {**_COMMON, "head_dim": 16, "tie_word_embeddings": False}
_SLIDING: dict[str, Any] = {"sliding_window": SLIDING_WINDOW}
_BOTH = _SLIDING | {"layer_types": ["sliding_attention", "full_attention"] * 2}
_GEMMA_2 = _GEMMA | _BOTH | {"query_pre_attn_scalar": 16}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _COMMON),
    "qwen2": ("Qwen2Config", _COMMON),
    "qwen3": ("Qwen3Config", {**_COMMON, "head_dim": 24}),
    "mistral": ("MistralConfig", {**_COMMON, **_SLIDING, "head_dim": 16}),
    "gemma": ("GemmaConfig", _GEMMA),
    "gemma2": ("Gemma2Config", {**_GEMMA_2, "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3TextConfig", _GEMMA_2),
}

_GPT_OSS = {**_COMMON, **_BOTH, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
_DEEPSEEK = {**_COMMON, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16}
_DEEPSEEK |= {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
_DEEPSEEK |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DEEPSEEK |= {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
ATTENTION_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    **FAMILIES,
    "phi3": ("Phi3Config", _COMMON),
    "gpt_neox": ("GPTNeoXConfig", {k: v for k, v in _COMMON.items() if "key_value" not in k}),
    "cohere2": ("Cohere2Config", {**_COMMON, **_SLIDING}),
    "gpt_oss": ("GptOssConfig", _GPT_OSS),
    "deepseek_v3": ("DeepseekV3Config", _DEEPSEEK),
}
"""And others whose attention is special: sinks, fused or latent projections, parallel layers."""

_LINEAR = {"linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_num_key_heads": 2}
_LINEAR |= {"linear_num_value_heads": 4, "head_dim": 16, "tie_word_embeddings": False}
HYBRID_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("Lfm2Config", {**_COMMON, "full_attn_idxs": [1, 3], "tie_word_embeddings": False}),
    "qwen3_5": (
        "Qwen3_5TextConfig",
        {**_COMMON, **_LINEAR, "layer_types": ["linear_attention", "full_attention"] * 2},
    ),
}
"""With recurrent layers beside attention."""


def tiny_checkpoint(directory: Path, family: str, **fields: Any) -> Path:
    """Saves a checkpoint of a family with fixed random weights.

    Args:
        directory: Where to put it, in a folder of its own.
        family: A key of ATTENTION_FAMILIES or HYBRID_FAMILIES.
        fields: Of its config, instead of those of the family.

    Returns:
        The folder with config.json and model.safetensors; it has no tokenizer.
    """
    class_name, options = (ATTENTION_FAMILIES | HYBRID_FAMILIES)[family]
    config = getattr(transformers, class_name)(**options | fields)
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


def add_tokenizer(path: Path) -> Path:
    """Gives a checkpoint a tokenizer of bytes, so that outputs can follow grammars."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<pad>", "<s>", "</s>", *letters]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    return path
