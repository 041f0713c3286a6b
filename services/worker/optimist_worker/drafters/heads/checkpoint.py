"""Files of draft heads: a config.json and safetensors, checked before use."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file

from optimist_common.errors import SetupError
from optimist_common.model_files.config import check_config
from optimist_common.model_files.directory import find_directory
from optimist_common.model_files.json_file import FileError, read_object
from optimist_common.model_files.tokenizer import explained
from optimist_common.model_files.weights import pickles, read_header
from optimist_worker.model.fit import finite_fault

FLAG = "--drafter-model"
_FILES = ["config.json", "*.safetensors"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the files of a head say, before it is known to fit."""

    name: str
    config: dict[str, Any]
    weights: dict[str, torch.Tensor]

    def size(self, *fields: str) -> int:
        """Returns the first of some fields of the config; raises SetupError if it is no count."""
        for field in fields:
            value = self.config.get(field)
            if value is not None:
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    raise self.refuse(f"its config.json says {field}: {value!r}, not a count")
                return value
        raise self.refuse(f"its config.json lacks {fields[0]}")

    def refuse(self, reason: str) -> SetupError:
        """Returns the error that says why the checkpoint cannot be used."""
        return SetupError(f"{FLAG}: {self.name} cannot be used: {reason}")


def read_checkpoint(name: str) -> Checkpoint:
    """Reads a directory with config.json and *.safetensors, or both from the hub; no pickles.

    Raises SetupError if it is missing, incomplete, damaged, or has pickled weights only.
    """
    with explained(f"{FLAG}: cannot fetch {name} from the hub"):
        directory = find_directory(name, FLAG) or Path(
            snapshot_download(name, allow_patterns=_FILES)
        )
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        if pickled := pickles(directory):
            raise SetupError(
                f"{FLAG}: {name} has its weights in {pickled[0]}, a pickle, which can run "
                "code when it is read; convert it to safetensors (safetensors.torch.save_file)"
            )
        raise SetupError(f"{FLAG}: {name} has no *.safetensors; give a directory with weights")
    try:
        config = read_object(directory / "config.json")
        check_config(config)
        for file in files:
            read_header(file)
    except FileNotFoundError as error:
        lacking = Path(error.filename).name
        raise SetupError(f"{FLAG}: {name} has no {lacking}; put it beside the others") from None
    except FileError as error:
        raise SetupError(f"{FLAG}: {name}: {error}") from None
    weights: dict[str, torch.Tensor] = {}
    with explained(f"{FLAG}: cannot read the weights of {name}"):
        for file in files:
            weights |= load_file(file)
    checkpoint = Checkpoint(name, config, weights)
    if fault := finite_fault(checkpoint.weights.items()):
        raise checkpoint.refuse(fault)
    return checkpoint


def fit(
    checkpoint: Checkpoint, weights: Mapping[str, torch.Tensor], module: torch.nn.Module
) -> None:
    """Puts weights into a module whose parameters have the same names, and get their dtype.

    Raises SetupError if one is missing, left over, or has another shape than the module's.
    """
    wanted = module.state_dict()
    missing = [key for key in wanted if key not in weights]
    if missing:
        raise checkpoint.refuse(f"it lacks {len(missing)} weights, such as {missing[0]}")
    unknown = [key for key in weights if key not in wanted]
    if unknown:
        raise checkpoint.refuse(
            f"it has {len(unknown)} weights that this kind of head does not know, "
            f"such as {unknown[0]}"
        )
    for key, parameter in wanted.items():
        if weights[key].shape != parameter.shape:
            raise checkpoint.refuse(
                f"{key} has the shape {list(weights[key].shape)} and not {list(parameter.shape)}; "
                "it belongs to another target model or its config.json is wrong"
            )
    module.load_state_dict(dict(weights), assign=True)


def check_target_ids(checkpoint: Checkpoint, ids: torch.Tensor, vocab_size: int, key: str) -> None:
    """Raises SetupError unless a reduced vocabulary has tokens of the target, each once.

    The ids, from the weight `key`, are the target's token of each row of the head's output matrix,
    int64 `[num_known]`.
    """
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise checkpoint.refuse(f"its {key} names tokens that the target does not have")
    if len(set(ids.tolist())) != len(ids):
        raise checkpoint.refuse(f"its {key} names a token twice")


def widen_logits(
    known: torch.Tensor, target_ids: torch.Tensor | None, vocab_size: int
) -> torch.Tensor:
    """Returns logits over the target's tokens, `[..., vocab_size]`: -inf for those not known.

    Of those known, `[..., num_known]`, `target_ids` are the target's tokens; None: all, in order.
    """
    if target_ids is None:
        return known
    logits = known.new_full((*known.shape[:-1], vocab_size), float("-inf"))
    return logits.index_copy_(-1, target_ids, known)
