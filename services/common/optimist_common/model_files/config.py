"""What the keys of config.json and generation_config.json may be, whatever the architecture.

Libraries divide by these numbers, allocate by them or count up to them before they look at them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from optimist_common.model_files.json_file import FileError, kind, shown

MAX_LAYERS = 1024
_POSITIONS = 2**31 - 1
_WIDTH = 2**22
_SIZES: Mapping[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), MAX_LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads"), 2**14),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 2**20),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "moe_intermediate_size"), _WIDTH),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_rope_head_dim", "qk_nope_head_dim"), 2**16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 2**16),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2**14),
    **dict.fromkeys(("linear_conv_kernel_dim", "conv_L_cache"), 2**10),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), _POSITIONS),
    "original_max_position_embeddings": _POSITIONS,
    **dict.fromkeys(("n_group", "topk_group"), 2**15),
    "vocab_size": 2**24,
    "kv_lora_rank": 2**20,
}
"""Whole numbers from 1, and the largest that is believed."""
_COUNTS: Mapping[str, int] = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 2**15),
    **dict.fromkeys(("num_experts_per_tok", "n_shared_experts", "num_shared_experts"), 2**15),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), _POSITIONS),
    **dict.fromkeys(("max_window_layers", "first_k_dense_replace"), _POSITIONS),
    **dict.fromkeys(("num_kv_shared_layers", "num_nextn_predict_layers"), MAX_LAYERS),
    **dict.fromkeys(("q_lora_rank", "shared_intermediate_size"), _WIDTH),
}
"""Whole numbers from 0, which stands for none."""
_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Not null; of the other keys that is said to mean a default."""
_SMALL = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
_FRACTIONS = ("partial_rotary_factor", "rotary_pct")
_POSITIVE: Mapping[str, float] = {
    **dict.fromkeys((*_SMALL, *_FRACTIONS), 1.0),
    **dict.fromkeys(("rope_theta", "rotary_emb_base", "rope_local_base_freq"), 1e30),
    **dict.fromkeys(("query_pre_attn_scalar", "logits_scaling"), 1e30),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), 1e30),
    **dict.fromkeys(("factor", "attention_factor", "low_freq_factor", "high_freq_factor"), 1e30),
    **dict.fromkeys(("beta_fast", "beta_slow"), 1e30),
}
"""Numbers above 0, and the largest that is believed."""
_NUMBERS = (
    *("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logit_scale"),
    *("initializer_range", "attention_dropout", "routed_scaling_factor", "mscale"),
)
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_FLAGS = ("tie_word_embeddings", "use_sliding_window", "attention_bias", "is_encoder_decoder")
_TEXTS = ("model_type", "hidden_act", "hidden_activation", "activation_function")
_ROPE = ("rope_scaling", "rope_parameters")
_DTYPES = (
    *("auto", "float64", "float32", "bfloat16", "float16", "double", "float", "half"),
    *("float8_e4m3fn", "float8_e5m2", "int8", "uint8"),
)


def check_config(config: Mapping[str, Any], name: str = "config.json") -> None:
    """Raises FileError if a key cannot be right, in the config itself or in those that it holds."""
    for key, value in config.items():
        if key in _ROPE and value is not None:
            _check_rope(value, f"{name}: {key}")
        elif key.endswith("_config"):
            if value is not None and not isinstance(value, dict):
                raise FileError(f"{name}: {key} is {shown(value)}; it must be an object")
            if key == "quantization_config":
                _check_texts(value or {}, f"{name}: {key}", ("quant_method",))
            else:
                check_config(value or {}, f"{name}: {key}")
        else:
            check_value(key, value, name)
    _check_texts(config, name, _TEXTS)
    _check_architectures(config, name)
    _check_heads(config, name)
    _check_layer_types(config, name)


def check_generation_config(config: Mapping[str, Any], name: str) -> None:
    """Raises FileError if a key that says where texts end cannot be right."""
    for key in _TOKENS:
        check_value(key, config.get(key), name)


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the part of a checked config that describes the decoder."""
    part = config.get("text_config")
    return part if isinstance(part, dict) and part else config


def check_value(key: str, value: Any, name: str) -> None:
    """Raises FileError if a key that is known has a value that it cannot have."""
    if value is None:
        if key in _NEEDED:
            raise FileError(f"{name}: {key} is null; it must be a whole number")
    elif key in _SIZES:
        _check_integers(key, value, name, 1, _SIZES[key])
    elif key in _COUNTS:
        _check_integers(key, value, name, 0, _COUNTS[key])
    elif key in _TOKENS:
        _check_integers(key, value, name, -1, 2**31 - 1)
    elif key in _POSITIVE:
        most = _POSITIVE[key]
        if not _is_number(value) or not 0 < value <= most:
            raise _wrong(name, key, value, f"a number above 0 and at most {most:g}")
    elif key in _NUMBERS and not _is_number(value):
        raise _wrong(name, key, value, "a number")
    elif key in _FLAGS and not isinstance(value, bool):
        raise _wrong(name, key, value, "true or false")


_MAY_BE_LISTS = (
    *("intermediate_size", "num_key_value_heads", "num_attention_heads"),
    *("bos_token_id", "eos_token_id", "decoder_start_token_id"),
)
"""Some architectures have one number for each layer, some models several end tokens."""


def _check_integers(key: str, value: Any, name: str, least: int, most: int) -> None:
    values = value if isinstance(value, list) and key in _MAY_BE_LISTS else [value]
    if len(values) > MAX_LAYERS:
        raise FileError(f"{name}: {key} has {len(values)} entries; {MAX_LAYERS} are the most")
    for each in values:
        if type(each) is not int or not least <= each <= most:
            raise _wrong(name, key, each, f"a whole number from {least} to {most}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong(name: str, key: str, value: Any, right: str) -> FileError:
    return FileError(f"{name}: {key} is {shown(value)}; it must be {right}")


def _check_rope(rope: Any, name: str) -> None:
    """Checks rotary parameters; some models have some for each type of layer."""
    if not isinstance(rope, dict):
        raise FileError(f"{name} is {shown(rope)}; it must be an object")
    for key, value in rope.items():
        if key in ("rope_type", "type"):
            if not isinstance(value, str):
                raise FileError(f"{name}.{key} is {shown(value)}; it must be a text")
        elif key in ("short_factor", "long_factor"):
            is_list = isinstance(value, list) and len(value) <= 2**16
            if not is_list or not all(_is_number(each) and each > 0 for each in value):
                raise FileError(f"{name}.{key} must be a list of numbers above 0")
        elif key == "rope_theta" and value is None:
            raise FileError(f"{name}.{key} is null; it must be a number above 0")
        elif key in _POSITIVE or value is None:
            check_value(key, value, name)
        elif isinstance(value, dict) or key.endswith("_attention"):
            _check_rope(value, f"{name}.{key}")
        else:
            check_value(key, value, name)


def _check_texts(config: Mapping[str, Any], name: str, keys: Iterable[str]) -> None:
    for key in keys:
        value = config.get(key)
        if value is not None and not isinstance(value, str):
            raise _wrong(name, key, value, "a text")


def _check_architectures(config: Mapping[str, Any], name: str) -> None:
    architectures = config.get("architectures")
    if architectures is not None and not _are_texts(architectures):
        raise _wrong(name, "architectures", architectures, "a list of texts")
    for key in ("dtype", "torch_dtype"):
        value = config.get(key)
        is_known = isinstance(value, str) and value.removeprefix("torch.") in _DTYPES
        if not (value is None or is_known or isinstance(value, dict)):
            raise _wrong(name, key, value, "float64, float32, bfloat16 or float16")


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _check_heads(config: Mapping[str, Any], name: str) -> None:
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
        raise FileError(
            f"{name}: num_key_value_heads is {groups}; it must divide num_attention_heads, "
            f"which is {heads}"
        )


def _check_layer_types(config: Mapping[str, Any], name: str) -> None:
    types, number = config.get("layer_types"), config.get("num_hidden_layers")
    if types is None:
        return
    if not _are_texts(types):
        raise FileError(f"{name}: layer_types is {kind(types)}; it must be a list of texts")
    if isinstance(number, int) and len(types) != number:
        raise FileError(
            f"{name}: layer_types has {len(types)} entries; num_hidden_layers is {number}"
        )
