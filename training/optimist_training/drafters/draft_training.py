"""A small model of its own that learns to say what the target says."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from optimist_training.drafters.target import Lesson, ahead, soft_loss

_TOKENIZER_FILES = ("tokenizer*", "chat_template*", "special_tokens_map.json", "vocab*", "merges*")


class DraftTrainee:
    """Distils a target into a causal language model with the same tokenizer."""

    layers: tuple[int, ...] | None = None

    def __init__(self, model: Any, target_name: str, dtype: torch.dtype) -> None:
        """Takes a model to train.

        Args:
            model: A causal model of transformers.
            target_name: Whose tokenizer files are written beside it, if it is a directory.
            dtype: To store its matrices in.
        """
        self.model, self._target_name, self._dtype = model, target_name, dtype
        model.set_attn_implementation("sdpa")
        model.requires_grad_(True)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns what is trained, by name."""
        return dict(self.model.named_parameters())

    def loss(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """Returns the loss over the completions, and the share of right tokens."""
        hidden = self.model.base_model(input_ids=lesson.token_ids, use_cache=False)[0]
        logits = self.model.get_output_embeddings()(hidden[lesson.wanted])
        taught = lesson.logits[lesson.wanted]
        share = (logits.argmax(-1) == taught.argmax(-1)).float().mean()
        return soft_loss(logits, taught), share.detach()

    def agreement(self, lesson: Lesson, depth: int) -> Tensor:
        """Returns where its tokens are the target's, shifted to where the chains start."""
        said = self.model(input_ids=lesson.token_ids, use_cache=False).logits.argmax(-1)
        same = said == lesson.said
        return torch.stack([ahead(same, level + 1) for level in range(depth)], dim=-1)

    def save(self, directory: Path) -> None:
        """Writes what the worker loads: weights, config and the target's tokenizer."""
        directory.mkdir(parents=True, exist_ok=True)
        weights = {
            name: value.detach().to(self._dtype if value.dim() > 1 else torch.float32, copy=True)
            for name, value in self.model.state_dict().items()
            if not (name == "lm_head.weight" and self.model.config.tie_word_embeddings)
        }
        file = directory / "model.safetensors"
        save_file(weights, file, metadata={"format": "pt"})
        file.chmod(0o644)
        config = self.model.config.to_diff_dict()
        config.pop("_name_or_path", None)
        config |= {"architectures": [type(self.model).__name__], "dtype": "float32"}
        config["model_type"] = self.model.config.model_type
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        source = Path(self._target_name)
        if source.is_dir():
            for pattern in _TOKENIZER_FILES:
                for found in source.glob(pattern):
                    shutil.copyfile(found, directory / found.name)
