"""One pass through the layers of a stage, and when it computed it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch

from optimist_common.errors import SetupError
from optimist_worker.core.batch.flat_batch import FlatBatch
from optimist_worker.model.division import StageCut, find_layers
from optimist_worker.model.model import Model


class StageTrace:
    """Writes a line per pass, if it is wanted: `{"pass": 1, "begin_ns": ..., "end_ns": ...}`.

    Times are of the machine's monotonic clock, which all processes of a machine share. On CUDA they
    are the host's, which does not wait for the device.
    """

    def __init__(self, directory: str, stage: int) -> None:
        """Opens `stage-N.jsonl`; an empty name of the directory writes nothing.

        Raises:
            SetupError: It cannot be written.
        """
        self._file: TextIO | None = None
        if not directory:
            return
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            path = Path(directory) / f"stage-{stage}.jsonl"
            self._file = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise SetupError(f"--stage-trace: cannot write {directory}: {error.strerror}") from None

    @contextmanager
    def note(self, number: int) -> Iterator[None]:
        """Notes when a pass begins and ends."""
        if self._file is None:
            yield
            return
        begin = time.monotonic_ns()
        yield
        line = {"pass": number, "begin_ns": begin, "end_ns": time.monotonic_ns()}
        self._file.write(json.dumps(line) + "\n")


class StagePass:
    """Runs a stage's part of the model between the states that stages hand on.

    What a decoder does to embeddings before its first layer (scaling, positions) must not be done
    to states. So they enter at the stage's first layer and leave after its last one, whatever the
    decoder does before and after.
    """

    def __init__(self, model: Model, cut: StageCut) -> None:
        """Hooks into the model."""
        self._model, self._place = model, cut.place
        module = model.module
        self.hidden_size = int(cut.outline.config.get_text_config().hidden_size)
        self._entering: torch.Tensor | None = None
        self._left: list[torch.Tensor] = []
        layers = find_layers(module, len(cut.layers))
        if not cut.place.is_first:
            layers[0].register_forward_pre_hook(self._enter, with_kwargs=True)
        if not cut.place.is_last:
            layers[-1].register_forward_hook(self._leave)

    @torch.inference_mode()
    def run(self, batch: FlatBatch, hidden: torch.Tensor | None) -> torch.Tensor:
        """Runs a pass.

        Args:
            batch: The inputs, alike on all stages.
            hidden: What the stage before has returned; None for the first.

        Returns:
            Hidden states `[num_tokens, hidden_size]`; of the last stage the logits asked for,
            `[num_logits, vocab_size]`.
        """
        inputs: dict[str, Any] = {
            "position_ids": batch.positions[None],
            "use_cache": False,
            "paged": batch.attention,
        }
        if hidden is None:
            inputs["input_ids"] = batch.input_ids[None]
        else:
            inputs["inputs_embeds"] = self._entering = hidden[None]
        module = self._model.module
        if self._place.is_last:
            logits: torch.Tensor = module(logits_to_keep=batch.logits_indices, **inputs).logits[0]
            return logits
        module.base_model(**inputs)
        (left,), self._left = self._left, []
        return left

    def _enter(self, layer: Any, arguments: Any, options: Any) -> tuple[Any, Any]:
        if arguments:
            return (self._entering, *arguments[1:]), options
        return arguments, {**options, "hidden_states": self._entering}

    def _leave(self, layer: Any, arguments: Any, output: Any) -> None:
        hidden = output if isinstance(output, torch.Tensor) else output[0]
        self._left.append(hidden[0])
