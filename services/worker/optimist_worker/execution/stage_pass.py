"""One pass through the layers of a stage."""

from typing import Any

import torch

from optimist_worker.core.batch.flat_batch import FlatBatch
from optimist_worker.model.model import Model
from optimist_worker.model.stage_loading import StageCut, find_layers


class StagePass:
    """Runs a stage's part of the model between the states that stages hand on.

    What a decoder does to embeddings before its first layer (scaling, positions) must not be done
    to states. So they enter at the stage's first layer and leave behind its last one, whatever the
    decoder does before and behind.
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
