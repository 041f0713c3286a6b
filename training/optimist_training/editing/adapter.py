"""A low-rank adapter that teaches a model to edit (LoRA, arXiv:2106.09685), in PEFT's format."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from optimist_common.errors import SetupError, one_line
from optimist_training.editing.packing import Pack

_ADAPTER_FILE = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class PackBatch:
    """Sequences of one step, computed one after another."""

    packs: Sequence[Pack]

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed."""
        return sum(len(one.token_ids) for one in self.packs)


def pack_batches(packs: Iterator[Pack], num_tokens: int) -> Iterator[PackBatch]:
    """Yields batches of about `num_tokens`, at least one sequence each."""
    chosen: list[Pack] = []
    length = 0
    for one in packs:
        if chosen and length + len(one.token_ids) > num_tokens:
            yield PackBatch(chosen)
            chosen, length = [], 0
        chosen.append(one)
        length += len(one.token_ids)


class Adapter:
    """A frozen model with an adapter on all linear layers, which is trained."""

    def __init__(self, model: str, rank: int, seed: int, device: str = "cpu") -> None:
        """Loads the model and gives it an adapter that changes nothing yet.

        Raises:
            SetupError: The model cannot be loaded.
        """
        torch.manual_seed(seed)
        config = LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        base = _load(model).to(device)
        with _without_renaming():
            self._model: Any = get_peft_model(base, config)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self._device = device
        self._causal: Any = self._model.get_base_model()

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns what is trained, by name."""
        named = self._model.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    def loss(self, batch: PackBatch) -> tuple[Tensor, Tensor]:
        """Returns the mean cross-entropy of what is taught, and the share of right choices."""
        losses, right = [], []
        for one in batch.packs:
            logits, targets = self._logits(one)
            losses.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
            right.append(logits.argmax(-1) == targets)
        return torch.cat(losses).mean(), torch.cat(right).float().mean()

    @torch.inference_mode()
    def answers_exactly(self, one: Pack) -> list[bool]:
        """Returns of each edit whether greedy decoding gives the right answer.

        As long as every token before was the first choice, the first choice is the next token of
        greedy decoding; so an answer is right if all of its tokens are.

        Args:
            one: Edits whose answers are computed whole.
        """
        logits, targets = self._logits(one)
        is_right = (logits.argmax(-1) == targets).tolist()
        branches = [
            branch for branch, target in zip(one.branches, one.targets, strict=True) if target >= 0
        ]
        wrong = {branch for branch, right in zip(branches, is_right, strict=True) if not right}
        return [branch not in wrong for branch in sorted(set(branches))]

    def save(self, directory: Path, base: str) -> None:
        """Writes the adapter as PEFT does, in bfloat16.

        Args:
            directory: Where to.
            base: The name of the model that the adapter belongs to.
        """
        self._model.save_pretrained(directory)
        state = get_peft_model_state_dict(self._model)
        weights = {name: value.to(torch.bfloat16).contiguous() for name, value in state.items()}
        save_file(weights, directory / _ADAPTER_FILE, metadata={"format": "pt"})
        (directory / _ADAPTER_FILE).chmod(0o644)
        file = directory / "adapter_config.json"
        config = json.loads(file.read_text()) | {"base_model_name_or_path": base}
        file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        (directory / "README.md").unlink(missing_ok=True)

    def _logits(self, one: Pack) -> tuple[Tensor, Tensor]:
        """Returns the logits `[taught, vocab_size]` and the tokens that are right."""
        token_ids, positions, sees, targets = one.tensors(self._device)
        hidden = self._causal.model(
            input_ids=token_ids, position_ids=positions, attention_mask=sees, use_cache=False
        ).last_hidden_state[0]
        is_taught = targets >= 0
        return self._causal.lm_head(hidden[is_taught]), targets[is_taught]


def merge(model: str, adapter: Path, out: Path) -> None:
    """Writes a model with an adapter added to its weights, in bfloat16, and its tokenizer.

    Raises:
        SetupError: The model or the adapter cannot be loaded.
    """
    base = _load(model)
    try:
        with _without_renaming():
            merged: Any = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    except (OSError, ValueError, RuntimeError) as error:
        raise SetupError(f"--adapter: {adapter} is not of {model}: {one_line(error)}") from None
    merged.to(torch.bfloat16).save_pretrained(out)
    for file in out.glob("*.safetensors"):
        file.chmod(0o644)
    AutoTokenizer.from_pretrained(model).save_pretrained(out)


@contextmanager
def _without_renaming() -> Iterator[None]:
    """Hides that PEFT asks for an attribute to which transformers gave another name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _load(model: str) -> Any:
    loader: Any = AutoModelForCausalLM
    try:
        return loader.from_pretrained(model, dtype=torch.float32, use_safetensors=True)
    except (OSError, ValueError) as error:
        raise SetupError(f"--model: {model} cannot be loaded: {one_line(error)}") from None
