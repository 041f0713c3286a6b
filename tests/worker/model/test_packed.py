"""Checkpoints that are quantised already: what they mean, on top of it, and what is refused."""

import importlib
import logging
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AttentionInterface, LlamaConfig

from optimist_common.errors import SetupError
from optimist_worker.core.attention.paged_attention import NAME, paged_attention
from optimist_worker.model.division import StagePosition
from optimist_worker.model.fused import LlamaLayer, fuse
from optimist_worker.model.loading import load_weights
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import load_model
from optimist_worker.model.packed_checkpoint import open_packed
from optimist_worker.model.rounding import Bits
from optimist_worker.model.source import ModelSource, read_source
from tests.checkpoints import tiny_checkpoint
from tests.damage import CONFIG, change
from tests.worker.model.packing import FLOAT, FORMS, Tensors, pack_checkpoint, spread
from tests.worker.step import SIZES, generate, local_runner

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"intermediate_size": 160, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a model in some form, which tests copy to change it; what it means is beside it."""
    directory = tmp_path_factory.mktemp("packed")
    source = tiny_checkpoint(directory, "qwen2", tie_word_embeddings=True, **SMALL)

    @cache
    def pack(form: str) -> Path:
        pack_checkpoint(source, directory / form, FORMS[form])
        return directory / form

    return pack


def load(path: Path, dtype: torch.dtype) -> Tensors:
    source = read_source(str(path), "--model")
    AttentionInterface.register(NAME, paged_attention)
    opened = open_packed(source, CPU, has_weights=True)
    module = load_weights(source, dtype, CPU, opened)
    weights: Tensors = module.state_dict()
    return weights


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_what_the_files_mean(form: str, packed: Callable[[str], Path]) -> None:
    wanted = load_file(f"{packed(form)}-plain/model.safetensors")
    for dtype in (torch.float64, torch.float32):
        found = load(packed(form), dtype)
        assert found.keys() - wanted.keys() == {"lm_head.weight"}
        for name, weight in wanted.items():
            # Single precision rounds products of scales in double precision once.
            assert torch.equal(found[name], weight.to(dtype)), name


def refusal(path: Path) -> str:
    with pytest.raises(SetupError) as caught:
        load_model(str(path), "float32", "cpu")
    (line,) = str(caught.value).splitlines()
    assert line.startswith("--model: ")
    return line


@pytest.mark.parametrize(
    ("form", "changes", "words"),
    [
        ("int4", {"quant_method": "frob"}, 'quant_method is "frob"; it must be one of aqlm, '),
        ("int4", {"quant_method": 5}, "quantization_config: quant_method is 5; it must be a text"),
        ("int4", {"format": "marlin-24"}, 'format is "marlin-24"; what is read is float-'),
        ("int4", {"config_groups": [1]}, "config_groups is a list; it must be an object"),
        ("int4", {"config_groups": {}}, "weight_packed has 20 words for 160 inputs"),
        ("int4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "what is read is dense"),
        ("int4", {"transform_config": {"config_groups": {"a": {}}}}, "rotates activations"),
        ("deepseek", {"weight_block_size": [64, 64]}, "[2, 4] scales; the blocks that share"),
        ("int8", {"quant_method": "fp8"}, ".weight is I8; it must be F8_E4M3 or"),
        ("awq", {"version": "gemv"}, 'version is "gemv"; what is read is gemm'),
        ("gptq", {"checkpoint_format": "marlin"}, "what is read is gptq, gptq_v2"),
        ("modelopt", {"quant_algo": "NVFP4"}, 'quant_algo is "NVFP4"; what is read is FP8, '),
    ],
)
def test_what_a_config_asks_for_beside_unpacking_is_refused(
    form: str,
    changes: dict[str, Any],
    words: str,
    packed: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    shutil.copytree(packed(form), tmp_path / "packed")
    change(CONFIG, quantization_config=FORMS[form].config | changes)(tmp_path / "packed")
    assert words in refusal(tmp_path / "packed")


LAYER = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("form", "key", "edit", "words"),
    [
        ("int4", "weight_scale", None, f"{LAYER}.weight_scale is missing"),
        ("int4", "weight_packed", None, "weight_scale is a weight that the model of config.json"),
        ("int4", "weight_packed", lambda part: part[:-1], "[159, 8]; [160, 8] is right"),
        ("int4", "weight_scale", lambda part: part * torch.nan, "up_proj.weight has 10240 val"),
        (
            "int4 by activations",
            "weight_g_idx",
            lambda part: part + 1,
            "up_proj has no scales for some",
        ),
        ("fp8 channel", "weight_scale", None, f"{LAYER}.weight is F8_E4M3 and has no scale"),
        (
            "int8 with zeros",
            "weight_zero_point",
            lambda part: part[1:],
            "[159, 1]; [160, 1] is right",
        ),
        ("int4 with zeros", "weight_zero_point", None, "up_proj.weight_zero_point is missing"),
        ("deepseek", "weight_scale_inv", lambda part: part[:1, :1], "[1, 1] scales; the blocks"),
        ("int4", "weight_packed", lambda part: part.long(), "is I64; it must be I32"),
        ("int8", "weight", lambda part: part[:0], "has the shape [0, 64]; it must be a matrix"),
        ("awq", "scales", lambda part: part.int(), "up_proj.scales is I32; it must be F64 or F32"),
        ("gptq", "qzeros", lambda part: part[:, 1:], "has 19 words for 160 outputs"),
        ("gptq", "qzeros", lambda part: part[1:], "[1, 20]; [2, 20] is right"),
        ("gptq", "scales", lambda part: part[0], "has the shape [160]; it must be a matrix"),
        ("awq", "qweight", lambda part: part[:, 1:], "[64, 19]; [64, 20] is right"),
    ],
)
def test_stored_numbers_that_do_not_fit_together_are_refused(
    form: str,
    key: str,
    edit: Callable[[torch.Tensor], torch.Tensor] | None,
    words: str,
    packed: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    shutil.copytree(packed(form), tmp_path / "packed")
    file = tmp_path / "packed" / "model.safetensors"
    weights = load_file(file)
    part = weights.pop(f"{LAYER}.{key}")
    if edit is not None:
        weights[f"{LAYER}.{key}"] = edit(part).contiguous()
    save_file(weights, file, metadata={"format": "pt"})
    assert words in refusal(tmp_path / "packed")


@pytest.mark.parametrize("bits", [None, 4])
def test_our_layers_compute_on_top_of_it(
    bits: Bits | None, packed: Callable[[str], Path], tmp_path: Path
) -> None:
    texts, dtypes = [], set()
    for name in ("int4", "int4-plain"):
        path = shutil.copytree(packed("int4").with_name(name), tmp_path / name)
        change(CONFIG, dtype="bfloat16")(path)
        model = load_model(str(path), "auto" if bits is None else "bfloat16", "cpu")
        fuse(model, bits)
        layers = [part for part in model.module.modules() if isinstance(part, LlamaLayer)]
        assert len(layers) == len(model.layers)
        assert {getattr(layer.qkv, "bits", 0) for layer in layers} == {bits or 0}
        dtypes.add(model.dtype)
        texts.append(generate(local_runner(model, DeviceState(model, SIZES)), [5, 9, 20], 24))
    assert texts[0] == texts[1]
    assert len(dtypes) == 1


@pytest.mark.parametrize(("stage", "is_tied"), [(0, False), (1, True)])
def test_stages_unpack_their_own_layers(*, stage: int, is_tied: bool, tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path, "llama", tie_word_embeddings=is_tied, **SMALL)
    plain = pack_checkpoint(source, tmp_path / "packed", FORMS["fp8 block"])
    wanted, found = (
        load_model(str(path), "float32", "cpu", stage=StagePosition(stage, 2)).module.state_dict()
        for path in (plain, tmp_path / "packed")
    )
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], weight) for name, weight in wanted.items())


def test_what_rounds_activations_and_keys_is_left_out(
    packed: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(packed("fp8 tensor"), tmp_path / "packed")
    file = tmp_path / "packed" / "model.safetensors"
    weights = load_file(file)
    for name in ("k_scale", "v_scale", "k_proj.output_scale", "q_proj.input_zero_point"):
        weights[f"model.layers.0.self_attn.{name}"] = torch.full((1,), 3.0)
    save_file(weights, file, metadata={"format": "pt"})
    change(CONFIG, quantization_config=FORMS["fp8 tensor"].config | {"kv_cache_scheme": FLOAT})(
        tmp_path / "packed"
    )
    with caplog.at_level(logging.INFO):
        found = load_model(str(tmp_path / "packed"), "float32", "cpu").module.state_dict()
    wanted = load_file(f"{packed('fp8 tensor')}-plain/model.safetensors")
    assert all(torch.equal(found[name], weight.float()) for name, weight in wanted.items())
    (line,) = [line for line in caplog.messages if "unpacked" in line]
    assert "activations, keys and values are not rounded" in line
    assert "not used" not in caplog.text


def test_random_weights_need_no_files(packed: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copy(packed("gptq") / "config.json", tmp_path)
    dummy = load_model(str(tmp_path), "float32", "cpu", dummy_weights=True)
    wanted = load_file(f"{packed('gptq')}-plain/model.safetensors")
    assert dummy.module.state_dict().keys() == {*wanted, "lm_head.weight"}


def test_a_gpu_takes_the_library() -> None:
    config: Any = LlamaConfig()
    config.quantization_config = FORMS["gptq"].config
    source = ModelSource("name", "--model", config)
    assert open_packed(source, torch.device("cuda"), has_weights=True) is None


def test_experts_in_4_bit_floats_are_unpacked_by_transformers(tmp_path: Path) -> None:
    """As gpt-oss is published."""
    path, meant = tiny_checkpoint(tmp_path, "gpt_oss"), {}
    weights = load_file(path / "model.safetensors")
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat((values, -values))
    for name in [name for name in weights if name.endswith(("experts.gate_up_proj", "down_proj"))]:
        num_experts, inputs, outputs = weights.pop(name).shape
        codes = torch.randint(0, 16, (num_experts, outputs, inputs // 32, 16, 2))
        exponents = torch.randint(120, 126, (num_experts, outputs, inputs // 32))
        numbers = values[codes].flatten(3) * (exponents - 127).float().exp2()[..., None]
        meant[name] = numbers.flatten(2).transpose(1, 2)
        weights[f"{name}_blocks"] = (codes[..., 0] | codes[..., 1] << 4).to(torch.uint8)
        weights[f"{name}_scales"] = exponents.to(torch.uint8)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    change(CONFIG, quantization_config={"quant_method": "mxfp4"})(path)
    found = load(path, torch.float32)
    assert meant
    assert all(torch.equal(found[name], weight) for name, weight in meant.items())


LIBRARYS_OWN = [
    name
    for name, form in FORMS.items()
    if form.config["quant_method"] == "compressed-tensors" and "actorder" not in str(form.config)
]


@pytest.mark.parametrize("form", LIBRARYS_OWN)
def test_the_library_of_compressed_tensors_reads_the_same(form: str) -> None:
    """It multiplies in the dtype of the scales, here single precision."""
    compressors = pytest.importorskip("compressed_tensors.compressors")
    quantization = importlib.import_module("compressed_tensors.quantization")
    config = FORMS[form].config
    scheme = quantization.QuantizationScheme(**config["config_groups"]["group_0"])
    weight = torch.randn((96, 160), generator=torch.Generator().manual_seed(5))
    packed = FORMS[form].pack(weight)
    parts = {name: part for name, part in packed.parts.items() if name != "input_scale"}
    parts["weight_scale"] = parts["weight_scale"].float()
    compressor = compressors.BaseCompressor.get_value_from_registry(config["format"])
    values = compressor.decompress(parts, scheme)["weight"]
    assert torch.equal(values, packed.values.float())


def test_the_library_of_compressed_tensors_reads_awq_the_same() -> None:
    converters = pytest.importorskip("compressed_tensors.entrypoints.convert.converters")
    weight = torch.randn((96, 160), generator=torch.Generator().manual_seed(5))
    packed = FORMS["awq"].pack(weight)
    converter = converters.AutoAWQConverter(group_size=32)
    names = ("qweight", "scales", "qzeros")
    values, scales, zeros = converter._convert_gemm_module(*(packed.parts[name] for name in names))
    wide = (values.double() - spread(zeros, values.shape, 1, 32)) * spread(
        scales, values.shape, 1, 32
    )
    assert torch.equal(wide, packed.values)
