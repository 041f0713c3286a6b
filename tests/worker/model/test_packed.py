"""Checkpoints that are quantised already: what they mean, on top of it, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from optimist_common.errors import SetupError
from optimist_worker.model.model import load_model
from tests.checkpoints import tiny_checkpoint
from tests.worker.model.packing import FORMS, pack_checkpoint


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_what_the_files_mean(form: str, tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path, "qwen2", tie_word_embeddings=True, intermediate_size=160)
    plain = pack_checkpoint(source, tmp_path / "packed", FORMS[form])
    wanted = load_model(str(plain), "float64", "cpu").module.state_dict()
    for dtype, exact in (("float64", torch.float64), ("float32", torch.float32)):
        found = load_model(str(tmp_path / "packed"), dtype, "cpu").module.state_dict()
        assert found.keys() == wanted.keys()
        for name, weight in found.items():
            # Single precision rounds products of scales in double precision once.
            assert torch.equal(weight, wanted[name].to(exact)), name


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
        ("int4", {"quant_method": ...}, "quant_method is null; it must be one of aqlm, "),
        ("int4", {"quant_method": 5}, "quantization_config: quant_method is 5; it must be a text"),
        ("int4", {"format": "marlin-24"}, 'format is "marlin-24"; what is read is float-'),
        ("int4", {"config_groups": [1]}, "config_groups is a list; it must be an object"),
        ("int4", {"config_groups": {"a": 5}}, "a is 5; it must be an object"),
        ("int4", {"config_groups": {}}, "weight_packed has 20 words for 160 inputs"),
        ("int4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "what is read is dense"),
        ("int4", {"transform_config": {"config_groups": {"a": {}}}}, "rotates activations"),
        ("deepseek", {"weight_block_size": [64, 64]}, "[2, 4] scales, which fit none of the"),
        ("deepseek", {"weight_block_size": "x"}, "[2, 4] scales, which fit none of the"),
        ("int8", {"quant_method": "fp8"}, "down_proj.weight is I8 and has a scale, which is unk"),
        ("awq", {"version": "gemv"}, 'version is "gemv"; what is read is gemm'),
        ("gptq", {"checkpoint_format": "marlin"}, "what is read is gptq, gptq_v2"),
        ("awq", {"group_size": 16}, "[64, 5] scales, which fit none of the blocks"),
        ("modelopt", {"quant_algo": "NVFP4"}, 'quant_algo is "NVFP4"; what is read is FP8, '),
    ],
)
def test_what_a_config_asks_for_beside_unpacking_is_refused(
    form: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    source = tiny_checkpoint(tmp_path, "llama", intermediate_size=160)
    pack_checkpoint(source, tmp_path / "packed", FORMS[form])
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    changed = {key: value for key, value in (FORMS[form].config | changes).items() if value != ...}
    config["quantization_config"] = changed
    (tmp_path / "packed" / "config.json").write_text(json.dumps(config))
    assert words in refusal(tmp_path / "packed")


LAYER = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("form", "key", "edit", "words"),
    [
        ("int4", "weight_scale", None, f"{LAYER}.weight_scale is missing"),
        ("int4", "weight_shape", None, f"{LAYER}.weight_shape is missing"),
        ("int4", "weight_packed", None, "weight_scale is a weight that the model of config.json"),
        ("int4", "weight_packed", lambda part: part[:-1], "[159, 8]; [160, 8] is right"),
        ("int4", "weight_packed", lambda part: part[:, :-1], "has 7 words for 64 inputs"),
        ("int4", "weight_scale", lambda part: part[:-1], "[159, 2] scales, which fit none"),
        ("int4", "weight_scale", lambda part: part * torch.nan, "up_proj.weight has 10240 val"),
        ("int4 with zeros", "weight_zero_point", lambda part: part[1:], "[20, 2] is right"),
        ("int4 by activations", "weight_g_idx", lambda part: part[1:], "each input (64)"),
        (
            "int4 by activations",
            "weight_g_idx",
            lambda part: part + 1,
            "up_proj has no scales for some",
        ),
        ("fp8 channel", "weight_scale", None, f"{LAYER}.weight is F8_E4M3 and has no scale"),
        ("fp8 channel", "weight", lambda part: part.float(), "is F32 and has a scale"),
        ("fp8 block", "weight_scale", lambda part: part[:1], "[1, 2] scales, which fit none"),
        ("int8 with zeros", "weight_zero_point", lambda part: part[1:], "zero points another"),
        ("gptq", "qzeros", None, f"{LAYER}.qzeros is missing"),
        ("gptq", "qzeros", lambda part: part[:, 1:], "weights of 2, 4 and 8 bits are known"),
        ("gptq", "qzeros", lambda part: part[1:], "[1, 20]; [2, 20] is right"),
        ("gptq", "qweight", lambda part: part[:, 1:], "[8, 159]; [8, 160] is right"),
        ("gptq", "scales", lambda part: part[0], "has the shape [160]; it must be a matrix"),
        ("gptq", "g_idx", lambda part: part[1:], "each input (64)"),
        ("awq", "qweight", lambda part: part[:, 1:], "[64, 19]; [64, 20] is right"),
        ("awq", "qzeros", lambda part: part[1:], "[1, 20]; [2, 20] is right"),
    ],
)
def test_stored_numbers_that_do_not_fit_together_are_refused(
    form: str,
    key: str,
    edit: Callable[[torch.Tensor], torch.Tensor] | None,
    words: str,
    tmp_path: Path,
) -> None:
    source = tiny_checkpoint(tmp_path, "llama", intermediate_size=160)
    pack_checkpoint(source, tmp_path / "packed", FORMS[form])
    file = tmp_path / "packed" / "model.safetensors"
    weights = load_file(file)
    part = weights.pop(f"{LAYER}.{key}")
    if edit is not None:
        weights[f"{LAYER}.{key}"] = edit(part).contiguous()
    save_file(weights, file, metadata={"format": "pt"})
    assert words in refusal(tmp_path / "packed")
