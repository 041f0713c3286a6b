"""The transformers config of a GGUF file, in which each of the file's keys has a place."""

from typing import Any

from transformers import AutoConfig

from optimist_worker.conversion.files import GgufFile
from optimist_worker.conversion.keys import Keys
from optimist_worker.conversion.rotary import read_rotary

# Those whose logits are compared with the model that a file was written from. The type is that of
# transformers; the values are what llama.cpp computes and no key says.
_TYPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen2moe": ("qwen2_moe", {"norm_topk_prob": False}),
    "qwen3": ("qwen3", {}),
    "qwen3moe": ("qwen3_moe", {"norm_topk_prob": True}),
    "phi3": ("phi3", {}),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3_text", {}),
    "gpt2": ("gpt2", {}),
    "starcoder2": ("starcoder2", {}),
}
# What a config may call the value of a key.
_NAMES: dict[str, tuple[str, ...]] = {
    "context_length": ("max_position_embeddings",),
    "block_count": ("num_hidden_layers",),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "norm_epsilon"),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_count": ("num_experts",),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_weights_norm": ("norm_topk_prob",),
    "vocab_size": ("vocab_size",),
}
_REQUIRED = ("context_length", "block_count", "embedding_length", "attention.head_count")
# How many layers until one has full attention.
_GEMMA_PERIODS = {"gemma2": 2, "gemma3": 6}
_GEMMA_DEPTHS = {18, 26, 32, 34, 42, 48}
_GEMMA_27B_DEPTHS = {46, 62}


def read_config(file: GgufFile) -> Any:
    """Returns the config of the file's model.

    Raises SetupError for an architecture that is not one of those above, and for a key that the
    config has no place for.
    """
    if file.metadata.get("general.type", "model") != "model":
        raise file.refusal(f"it is no model by itself ({file.metadata['general.type']})")
    if file.architecture not in _TYPES:
        raise file.refusal(f"this architecture is not supported; {', '.join(_TYPES)} are")
    model_type, fixed = _TYPES[file.architecture]
    defaults = AutoConfig.for_model(model_type)
    keys = Keys(file)
    values = fixed | _by_flags(file, defaults) | _by_names(keys, defaults)
    head_dim = _head_dim(keys, values)
    if hasattr(defaults, "head_dim"):
        values["head_dim"] = head_dim
    heads = values["num_attention_heads"]
    if hasattr(defaults, "num_key_value_heads"):
        values.setdefault("num_key_value_heads", heads)
    elif keys.take("attention.head_count_kv", heads) != heads:
        raise file.refusal("its heads share keys and values")
    values |= _windows(keys, defaults, values)
    values |= _attention_scale(keys, values, head_dim)
    if hasattr(defaults, "rope_parameters"):
        values["rope_parameters"] = _rotary(keys, values, head_dim)
    keys.require_all_read()
    return AutoConfig.for_model(model_type, **values)


def _by_flags(file: GgufFile, defaults: Any) -> dict[str, Any]:
    """Returns what the names of tensors, and the tokenizer, say."""
    parts = {name.split(".", 2)[-1] for name in file.tensors if name.startswith("blk.")}
    attention = any(name.startswith("attn_") and name.endswith(".bias") for name in parts)
    feed_forward = any(name.startswith("ffn_") and name.endswith(".bias") for name in parts)
    flags = {
        "attention_bias": attention,
        "mlp_bias": feed_forward,
        "use_bias": attention or feed_forward,
    }
    ids = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {
        **{name: value for name, value in flags.items() if hasattr(defaults, name)},
        **{
            f"{name}_token_id": file.metadata.get(f"tokenizer.ggml.{key}_token_id")
            for name, key in ids.items()
        },
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": len(file.metadata.get("tokenizer.ggml.tokens", ())),
    }


def _by_names(keys: Keys, defaults: Any) -> dict[str, Any]:
    for name in _REQUIRED:
        if keys.peek(name) is None:
            keys.require(name)
    values = {}
    for key, names in _NAMES.items():
        field = next((each for each in names if hasattr(defaults, each)), None)
        value = keys.peek(key)
        if field is not None and value is not None and not isinstance(value, list):
            # A cap of 0 is none.
            values[field] = (keys.take(key) or None) if "softcapping" in key else keys.take(key)
    return values


def _head_dim(keys: Keys, values: dict[str, Any]) -> int:
    heads, hidden = values["num_attention_heads"], values["hidden_size"]
    whole: int = keys.take("attention.key_length", values.get("head_dim", hidden // heads))
    if keys.take("attention.value_length", whole) != whole:
        raise keys.file.refusal("its keys and values have different lengths")
    return whole


def _windows(keys: Keys, defaults: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the sliding window, and which layers have it."""
    window = keys.peek("attention.sliding_window")
    architecture = keys.file.architecture
    period = _GEMMA_PERIODS.get(architecture)
    if period is None:
        # A text of the length that the model is for never leaves such a window.
        if window is not None and window >= values["max_position_embeddings"]:
            keys.take("attention.sliding_window")
        elif window and hasattr(defaults, "sliding_window") and not _switches(defaults):
            return {"sliding_window": keys.take("attention.sliding_window")}
        return {"sliding_window": None} if hasattr(defaults, "sliding_window") else {}
    found = keys.take("attention.sliding_window_pattern", period)
    layers = range(values["num_hidden_layers"])
    slides = found if isinstance(found, list) else [index % found < found - 1 for index in layers]
    if len(slides) != len(layers):
        raise keys.file.refusal("its pattern of sliding windows is not one of its layers")
    if architecture == "gemma2":
        window = window or 4096
    elif not window:
        raise keys.file.refusal("it does not say the length of its sliding window")
    keys.take("attention.sliding_window")
    return {
        "sliding_window": window,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
    }


def _switches(defaults: Any) -> bool:
    """Returns whether a window holds for some layers that another value chooses."""
    return hasattr(defaults, "use_sliding_window")


def _attention_scale(keys: Keys, values: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """Returns the number whose root divides the scores, where it is not the heads' width."""
    scale = keys.take("attention.scale", 0.0)
    if keys.file.architecture not in _GEMMA_PERIODS:
        if scale and abs(scale * head_dim**0.5 - 1.0) > 1e-5:
            raise keys.file.refusal(f"its attention scale ({scale:g}) is not read")
        return {}
    if scale:
        return {"query_pre_attn_scalar": round(scale**-2)}
    depth = values["num_hidden_layers"]
    by_hidden = values["hidden_size"] // values["num_attention_heads"]
    if depth in _GEMMA_27B_DEPTHS:
        return {"query_pre_attn_scalar": by_hidden}
    if depth not in _GEMMA_DEPTHS and by_hidden != head_dim:
        raise keys.file.refusal(
            f"its attention scale is in no key, and not known for {depth} layers"
        )
    return {"query_pre_attn_scalar": head_dim}


def _rotary(keys: Keys, values: dict[str, Any], head_dim: int) -> dict[str, Any]:
    full = read_rotary(keys, head_dim, values["max_position_embeddings"])
    architecture = keys.file.architecture
    if "partial_rotary_factor" in full and architecture != "phi3":
        raise keys.file.refusal("it rotates a part of each head")
    if architecture != "gemma3":
        base = full["rope_theta"]
        if keys.take("rope.freq_base_swa", base) != base:
            raise keys.file.refusal("layers with a window have a rotary base of their own")
        return full
    near = keys.take("rope.freq_base_swa", 10000.0)
    return {
        "full_attention": full,
        "sliding_attention": {"rope_type": "default", "rope_theta": near},
    }
