"""The state of a training run on disk: safetensors and JSON, so that it can go on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from optimist_common.errors import SetupError

_MOMENTS = ("exp_avg", "exp_avg_sq")


def save_snapshot(
    directory: Path,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
) -> None:
    """Writes parameters, the optimizer's moments and `state`; a reader never sees half of it."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {f"parameter.{name}": value.detach() for name, value in parameters.items()}
    steps = {}
    for name, parameter in parameters.items():
        moments = optimizer.state.get(parameter)
        if moments:
            steps[name] = float(moments["step"])
            tensors |= {f"{moment}.{name}": moments[moment] for moment in _MOMENTS}
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    step = state["step"]
    save_file(tensors, directory / f"step-{step}.safetensors")
    unfinished = directory / "state.json.unfinished"
    unfinished.write_text(json.dumps(state | {"optimizer_steps": steps}, indent=2) + "\n")
    unfinished.replace(directory / "state.json")
    for old in directory.glob("step-*.safetensors"):
        if old.name != f"step-{step}.safetensors":
            old.unlink()


def load_snapshot(
    directory: Path,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> dict[str, Any]:
    """Puts a saved run into parameters and optimizer; returns its `state`.

    Raises:
        SetupError: There is none, or it is of other parameters.
    """
    try:
        state: dict[str, Any] = json.loads((directory / "state.json").read_text())
        tensors = load_file(directory / f"step-{state['step']}.safetensors")
        steps = state["optimizer_steps"]
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[f"parameter.{name}"])
                if name in steps:
                    optimizer.state[parameter] = {
                        "step": torch.tensor(steps[name]),
                        **{moment: tensors[f"{moment}.{name}"].clone() for moment in _MOMENTS},
                    }
    except FileNotFoundError:
        raise SetupError(f"--resume: {directory} holds no run; leave --resume out") from None
    except (ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SetupError(f"--resume: {directory} is of another run: {reason}") from None
    return state
