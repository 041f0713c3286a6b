"""A Llama as a GGUF file, laid out as llama.cpp's conversion does."""

from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
EOS, EOT = 2, 5


def write_gguf(
    path: Path,
    model: LlamaForCausalLM,
    *,
    architecture: str = "llama",
    matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
) -> Path:
    """Writes a model with a tokenizer of single bytes; returns the path.

    The vocabulary has at least 256 entries and some special ones. Weights that are no matrices are
    float32. Further metadata and tensors are by their names.
    """
    config: Any = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_license("apache-2.0")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, config.vocab_size)
    for name, value in (metadata or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(name, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        given = names.get_name(name, (".weight",))
        assert given is not None, name
        array = _permuted(name, weight, config).numpy()
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


def _add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    tokens = ["<pad>", "<bos>", "<eos>", "<unk>", "<system>", "<eot>"]
    num_special = len(tokens)
    tokens += bytes_to_unicode().values()  # type: ignore[no-untyped-call]
    tokens.append("ab")
    tokens += [f"<unused{index}>" for index in range(vocab_size - len(tokens))]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    is_text = range(num_special, num_special + 257)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([normal if index in is_text else control for index in range(vocab_size)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(EOT)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)
