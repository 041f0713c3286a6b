"""What a GGUF file says is computed, or the file is refused by the name of it."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from optimist_common.errors import SetupError
from optimist_worker.conversion.config import read_config
from optimist_worker.conversion.convert import convert
from optimist_worker.conversion.files import read_gguf
from tests.worker.conversion.tiny_gguf import write_gguf

_SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GPT2 = {"n_inner": 96, "n_positions": 256, "n_embd": 64, "n_layer": 2, "n_head": 4}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
_LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
_YARN |= {"original_max_position_embeddings": 64}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
_TEXT = torch.arange(6, 70)[None]


def make(class_name: str, **fields: Any) -> Any:
    """Returns a model with random weights, norms and biases too."""
    sizes = {**_GPT2, "vocab_size": 300} if class_name == "GPT2" else _SIZES
    config = getattr(transformers, f"{class_name}Config")(**{**sizes, **_IDS, **fields})
    auto_model: Any = AutoModelForCausalLM
    model: Any = auto_model.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(20261128)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            center = 1.0 if "norm" in name and "Gemma" not in class_name else 0.0
            parameter.normal_(center, 0.2, generator=generator)
    return model.eval()


def convert_back(file: Path, made: Path) -> PreTrainedModel:
    convert(read_gguf(file), made)
    auto_model: Any = AutoModelForCausalLM
    model: PreTrainedModel = auto_model.from_pretrained(
        made, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
    )
    return model


def assert_same_logits(made: PreTrainedModel, original: PreTrainedModel) -> None:
    with torch.inference_mode():
        found, expected = made(_TEXT).logits, original(_TEXT).logits
    # Norms that are stored plus one lose a bit of float32.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "class_name", "fields"),
    [
        ("llama", "Llama", {"head_dim": 32, "attention_bias": True, "mlp_bias": True}),
        ("qwen2", "Qwen2", {}),
        ("qwen3", "Qwen3", {"head_dim": 32}),
        ("qwen2moe", "Qwen2Moe", {**_EXPERTS, "shared_expert_intermediate_size": 48}),
        ("qwen3moe", "Qwen3Moe", {**_EXPERTS, "norm_topk_prob": True, "head_dim": 16}),
        ("phi3", "Phi3", {"rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}}),
        ("gemma2", "Gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 20}),
        (
            "gemma3",
            "Gemma3Text",
            {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 9},
        ),
        ("gpt2", "GPT2", {}),
        ("starcoder2", "Starcoder2", {"rope_parameters": {"rope_theta": 1e5}}),
    ],
)
def test_each_architecture_has_the_logits_of_its_model(
    architecture: str, class_name: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    original = make(class_name, **fields)
    file = write_gguf(tmp_path / "file.gguf", original, architecture=architecture)
    assert_same_logits(convert_back(file, tmp_path / "made"), original)


def test_the_27b_models_divide_by_what_their_depth_says(tmp_path: Path) -> None:
    fields = {"hidden_size": 32, "head_dim": 16, "query_pre_attn_scalar": 8, "sliding_window": 20}
    original = make("Gemma2", num_hidden_layers=46, **fields)
    file = write_gguf(tmp_path / "file.gguf", original, architecture="gemma2")
    assert read_config(read_gguf(file)).query_pre_attn_scalar == 8

    other = make("Gemma2", num_hidden_layers=4, **fields)
    file = write_gguf(tmp_path / "other.gguf", other, architecture="gemma2")
    with pytest.raises(SetupError, match="its attention scale is in no key, and not known for 4 l"):
        convert(read_gguf(file), tmp_path / "none")
    stated = {"gemma2.attention.scale": 8**-0.5}
    file = write_gguf(tmp_path / "k.gguf", other, architecture="gemma2", metadata=stated)
    assert_same_logits(convert_back(file, tmp_path / "stated"), other)


@pytest.mark.parametrize(
    ("parameters", "keys"),
    [
        (_LINEAR, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        (_LINEAR, {"rope.scale_linear": 4.0}),
        (
            _YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5},
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 64,
                "rope.scaling.yarn_beta_fast": 16.0,
                "rope.scaling.yarn_beta_slow": 2.0,
                "rope.scaling.attn_factor": 1.5 / 1.138629436,
            },
        ),
    ],
)
def test_rotary_scaling_is_read(
    parameters: dict[str, Any], keys: dict[str, Any], tmp_path: Path
) -> None:
    original = make("Llama", rope_parameters=parameters)
    metadata = {f"llama.{key}": value for key, value in keys.items()}
    file = write_gguf(tmp_path / "file.gguf", original, metadata=metadata)
    assert_same_logits(convert_back(file, tmp_path / "made"), original)


@pytest.mark.parametrize(
    "changes",
    [
        {"factor": 32.0, "original_max_position_embeddings": 8192, "rope_theta": 5e5},
        {"high_freq_factor": 3.0, "original_max_position_embeddings": 100},
    ],
)
def test_rotary_factors_of_llama_3_1_are_read(changes: dict[str, Any], tmp_path: Path) -> None:
    parameters: dict[str, Any] = _LLAMA3 | changes
    original = make("Llama", rope_parameters=parameters, head_dim=64)
    base = parameters["rope_theta"] ** (torch.arange(0, 64, 2) / 64)
    factors = 1.0 / (base * original.model.rotary_emb.inv_freq)
    tensors = {"rope_freqs.weight": factors}
    file = write_gguf(tmp_path / "file.gguf", original, tensors=tensors)
    made = convert_back(file, tmp_path / "made")
    assert made.config.rope_parameters["rope_type"] == "llama3"
    assert_same_logits(made, original)

    file = write_gguf(tmp_path / "bad.gguf", original, tensors={"rope_freqs.weight": factors**2})
    with pytest.raises(SetupError, match=r"rope_freqs.weight has no rotary factors of Llama 3.1$"):
        convert(read_gguf(file), tmp_path / "none")


def test_biases_that_a_file_has_in_part_are_zero_elsewhere(tmp_path: Path) -> None:
    original = make("Llama", attention_bias=True)
    with torch.no_grad():
        for layer in original.model.layers:
            layer.self_attn.o_proj.bias.zero_()
    file = write_gguf(tmp_path / "file.gguf", original, without="attn_output.bias")
    assert_same_logits(convert_back(file, tmp_path / "made"), original)


@pytest.mark.parametrize(
    ("class_name", "metadata", "tensors", "reason"),
    [
        (
            "Llama",
            {"llama.attention.sliding_window": 20},
            {},
            r"llama.attention.sliding_window \(20\)",
        ),
        ("Llama", {"llama.attention.scale": 0.5}, {}, r"its attention scale \(0.5\) is not read"),
        ("Llama", {"llama.rope.dimension_count": 8}, {}, "it rotates a part of each head"),
        ("Llama", {"llama.rope.scaling.type": "longrope"}, {}, r"rotary scaling \(longrope\)"),
        ("Llama", {"llama.nonesuch": 1}, {}, r"llama.nonesuch \(1\) is not read"),
        ("Llama", {"general.type": "adapter"}, {}, r"it is no model by itself \(adapter\)"),
        ("Llama", {}, {"blk.0.attn_q_norm.weight": torch.ones(16)}, "it has blk.0.attn_q_norm.we"),
        ("Phi3", {}, {"rope_factors_long.weight": torch.ones(8)}, "it has rope_factors_long.weig"),
        ("Qwen2", {}, {"rope_freqs.weight": torch.full((8,), 3.0)}, "rope_freqs.weight"),
    ],
)
def test_what_has_no_place_is_refused_by_name(
    class_name: str,
    metadata: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    reason: str,
    tmp_path: Path,
) -> None:
    path = tmp_path / "file.gguf"
    architecture = class_name.lower()
    write_gguf(
        path, make(class_name), architecture=architecture, metadata=metadata, tensors=tensors
    )
    with pytest.raises(SetupError, match=reason) as refusal:
        convert(read_gguf(path), tmp_path / "made")
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert not (tmp_path / "made").exists()


def test_what_changes_nothing_is_passed_over(tmp_path: Path) -> None:
    original = make("Llama")
    metadata = {
        "general.quantized_by": "somebody",
        "quantize.imatrix.file": "some.dat",
        "llama.attention.causal": True,
        "llama.attention.sliding_window": 256,
        "llama.expert_count": 0,
        "llama.rope.scaling.type": "none",
        "llama.tensor_data_layout": "Meta AI original pth",
        "llama.rope.freq_base": None,
        "tokenizer.ggml.fim_pre_token_id": 4,
        "tokenizer.chat_template.tools": "",
    }
    file = write_gguf(tmp_path / "file.gguf", original, metadata=metadata)
    assert_same_logits(convert_back(file, tmp_path / "made"), original)


def test_files_that_are_split_are_joined(tmp_path: Path) -> None:
    original = make("Llama")
    write_gguf(tmp_path / "Some.gguf", original, split_max_tensors=8)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert [part.name for part in parts] == [f"Some-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert_same_logits(convert_back(parts[2], tmp_path / "made"), original)
    moved = parts[0].rename(tmp_path / "first.gguf")
    with pytest.raises(SetupError, match="is one of 3 parts, and not called so; name the first as"):
        read_gguf(moved)
    moved.rename(parts[0])
    parts[2].replace(parts[1])
    with pytest.raises(SetupError, match=r"cannot read \S*00003.gguf: No such file"):
        read_gguf(parts[0])
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(SetupError, match=r"00002-of-00003.gguf is not part 2 of 3, as its name"):
        read_gguf(parts[0])


def test_big_endian_files_are_called_so(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    write_gguf(path, make("Llama"), endianess=gguf.GGUFEndian.BIG)
    with pytest.raises(SetupError, match=r"file.gguf is big-endian; make a little-endian file of"):
        read_gguf(path)
