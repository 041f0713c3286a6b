"""Models as GGUF files, laid out as llama.cpp's conversion does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import PreTrainedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
EOS, EOT = 2, 5


# What models call what a file says of them.
_KEYS = {
    "block_count": ("num_hidden_layers",),
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads", "num_attention_heads"),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "norm_epsilon"),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_count": ("num_experts",),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "vocab_size": ("vocab_size",),
}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    architecture: str = "llama",
    matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
    without: str | None = None,
    **files: Any,
) -> Path:
    """Writes a model with a tokenizer of single bytes; returns the path.

    The vocabulary has at least 264 entries and some special ones. Weights that are no matrices are
    float32. Further metadata and tensors are by their names; None leaves a key out, and weights
    whose names end in `without` are left out. What else is given goes to the writer,
    such as its byte order, or how many tensors a part may have.
    """
    config: Any = model.config
    writer = gguf.GGUFWriter(path, architecture, **files)
    stated = {"general.name": "Tiny", "general.license": "apache-2.0"}
    stated |= _model_keys(config, architecture) | tokenizer_keys(config.vocab_size)
    for name, value in (stated | (metadata or {})).items():
        _add(writer, name, value)
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    number = numbers.get(architecture, gguf.MODEL_ARCH.LLAMA)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, weight in _stored(model, architecture):
        given = name if name.startswith("blk.") else names.get_name(name, (".weight", ".bias"))
        assert given is not None, name
        if without is not None and given.endswith(without):
            continue
        array = weight.contiguous().numpy()
        if array.ndim == 2:
            stored = gguf.quantize(array, matrices)
            writer.add_tensor(given, stored, raw_dtype=matrices)
        else:
            writer.add_tensor(given, array)
    for name, weight in (tensors or {}).items():
        writer.add_tensor(name, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _model_keys(config: Any, architecture: str) -> dict[str, Any]:
    keys = {}
    for key, names in _KEYS.items():
        found = (getattr(config, name, None) for name in names)
        keys[f"{architecture}.{key}"] = next((each for each in found if each is not None), None)
    parameters = getattr(config, "rope_parameters", None)
    if parameters:
        nested = "full_attention" in parameters
        parameters = parameters["full_attention"] if nested else parameters
        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        width = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
        keys[f"{architecture}.rope.freq_base"] = parameters["rope_theta"]
        keys[f"{architecture}.rope.dimension_count"] = width
    return keys


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif value is not None:
        writer.add_array(name, value)


def _stored(model: PreTrainedModel, architecture: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields weights as a conversion to GGUF changes them."""
    config: Any = model.config
    state = model.state_dict()
    for name, weight in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if "experts.gate_up_proj" in name:
            block = f"blk.{name.split('.')[2]}"
            gate, up = weight.chunk(2, dim=1)
            yield f"{block}.ffn_gate_exps.weight", gate
            yield f"{block}.ffn_up_exps.weight", up
        elif "experts.down_proj" in name:
            yield f"blk.{name.split('.')[2]}.ffn_down_exps.weight", weight
        elif architecture == "gpt2" and weight.dim() == 2 and ".h." in name:
            yield name, weight.T
        elif architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            yield name, weight + 1.0
        elif name.endswith("shared_expert_gate.weight"):
            yield name, weight[0]
        elif architecture == "llama":
            yield name, _permuted(name, weight, config)
        else:
            yield name, weight


def rounded(weight: torch.Tensor, matrices: gguf.GGMLQuantizationType) -> torch.Tensor:
    """Returns a weight as it is read from a file."""
    if weight.dim() != 2:
        return weight
    return torch.from_numpy(gguf.dequantize(gguf.quantize(weight.numpy(), matrices), matrices))


def _permuted(name: str, weight: torch.Tensor, config: Any) -> torch.Tensor:
    """Has the halves of each head's rows alternate, as llama.cpp rotates neighbours."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, number in heads.items():
        if part in name:
            rows = weight.shape[0] // number // 2
            return weight.reshape(number, 2, rows, -1).transpose(1, 2).reshape(weight.shape).clone()
    return weight


def tokenizer_keys(vocab_size: int) -> dict[str, Any]:
    tokens = ["<pad>", "<bos>", "<eos>", "<unk>", "<system>", "<eot>"]
    num_special = len(tokens)
    tokens += bytes_to_unicode().values()  # type: ignore[no-untyped-call]
    tokens.append("ab")
    tokens += [f"<unused{index}>" for index in range(vocab_size - len(tokens))]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    is_text = range(num_special, num_special + 257)
    types = [int(normal if index in is_text else control) for index in range(vocab_size)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.eot_token_id": EOT,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
