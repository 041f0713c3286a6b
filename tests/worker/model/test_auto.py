"""Which device and dtype a model is computed on and in."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from optimist_common.errors import SetupError
from optimist_worker.model.loading import choose_device, choose_dtype
from optimist_worker.model.model import load_model

BUNDLED = Path(__file__).parents[3] / "models" / "tiny-edit"
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def config_with(**fields: object) -> Any:
    config = SimpleNamespace(**fields)
    config.get_text_config = lambda: config
    return config


@pytest.mark.parametrize(
    ("num_gpus", "name", "device"),
    [
        (0, "auto", "cpu"),
        (0, "auto:3", "cpu"),
        (2, "auto", "cuda"),
        (2, "auto:1", "cuda:1"),
        (2, "cpu", "cpu"),
    ],
)
def test_auto_takes_a_gpu_if_there_is_one(
    num_gpus: int, name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    assert choose_device(name) == torch.device(device)


@pytest.mark.parametrize(("num_gpus", "name"), [(0, "cuda"), (2, "cuda:2"), (2, "auto:2")])
def test_a_device_that_is_not_there_is_refused(
    num_gpus: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    with pytest.raises(SetupError, match=r"--device: cuda\S* is not on this machine"):
        choose_device(name)


@pytest.mark.parametrize(
    ("device", "fields", "dtype"),
    [
        (CPU, {"dtype": torch.bfloat16}, torch.float32),
        (GPU, {"dtype": torch.bfloat16}, torch.bfloat16),
        (GPU, {"dtype": "float16"}, torch.float16),
        (GPU, {}, torch.float32),
        (GPU, {"dtype": torch.bfloat16, "minimum_dtype": "float32"}, torch.float32),
        (GPU, {"dtype": torch.float32, "minimum_dtype": "bfloat16"}, torch.float32),
        (GPU, {"dtype": torch.float16, "minimum_dtype": "bfloat16"}, torch.bfloat16),
    ],
)
def test_auto_takes_the_models_own_dtype_on_a_gpu(
    device: torch.device, fields: dict[str, Any], dtype: torch.dtype
) -> None:
    assert choose_dtype("name", "--model", "auto", device, config_with(**fields)) == dtype


def test_a_dtype_that_is_set_goes_unless_the_model_needs_a_wider_one() -> None:
    config = config_with(dtype=torch.float32)
    assert choose_dtype("name", "--model", "bfloat16", CPU, config) == torch.bfloat16
    config.minimum_dtype = "float32"
    assert choose_dtype("name", "--model", "float64", CPU, config) == torch.float64


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_bundled_model_is_not_computed_in_less_than_float32(dtype: str) -> None:
    with pytest.raises(SetupError, match=rf"tiny-edit needs float32 .* not {dtype}; choose"):
        load_model(str(BUNDLED), dtype, "cpu")


@pytest.mark.parametrize("fields", [{"dtype": torch.float8_e4m3fn}, {"minimum_dtype": "float99"}])
def test_a_dtype_that_the_worker_lacks_is_named(fields: dict[str, Any]) -> None:
    (field,) = fields
    with pytest.raises(SetupError, match=f"^--model: name has {field} float.* in its config.json"):
        choose_dtype("name", "--model", "auto", CPU, config_with(**fields))
