"""One pass through the layers of a stage, and what the last stage has made of it."""

import json
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from safetensors.torch import load, save

from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.batch.flat_batch import FlatBatch
from optimist_worker.core.plan import Admission
from optimist_worker.grammar.masks import Masks
from optimist_worker.model.division import StageCut, find_layers
from optimist_worker.model.model import Model

_TENSORS = [field.name for field in fields(Verdict)]


class StagePass:
    """Runs a stage's part of the model between the states that stages hand on.

    What a decoder does to embeddings before its first layer (scaling, positions) must not be done
    to states. So they enter at the stage's first layer and leave after its last one, whatever the
    decoder does before and after.
    """

    def __init__(self, model: Model, cut: StageCut) -> None:
        self._model, self._position = model, cut.position
        module = model.module
        self.hidden_size = int(cut.outline.config.get_text_config().hidden_size)
        self._entering: torch.Tensor | None = None
        self._left: list[torch.Tensor] = []
        layers = find_layers(module, len(cut.layers))
        if not cut.position.is_first:
            layers[0].register_forward_pre_hook(self._enter, with_kwargs=True)
        if not cut.position.is_last:
            layers[-1].register_forward_hook(self._leave)

    @torch.inference_mode()
    def run(self, batch: FlatBatch, hidden: torch.Tensor | None) -> torch.Tensor:
        """Runs a pass on what the stage before has returned, at first None; the batch is alike.

        Returns hidden states `[num_tokens, hidden_size]`; of the last stage the logits asked for,
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
        if self._position.is_last:
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


@dataclass(slots=True)
class StageVerdict:
    """What came of a plan."""

    number: int
    """Of the pass."""
    verdict: Verdict | None
    """On the host; None if the step has failed."""
    scored: torch.Tensor | None = None
    """Log-probabilities, on the host, see `StepTensors`."""
    failure: str = ""
    """Why the step has failed."""
    faults: dict[int, str] = field(default_factory=dict)
    """Why grammars can be followed no further, by slot."""
    drafts: int = 0
    """Checksum of the drafts that the last stage has judged."""


def write_verdict(reached: StageVerdict) -> bytes:
    """Returns a verdict's bytes: its tensors as safetensors, with all else as JSON among them."""
    others = [reached.number, reached.failure, list(reached.faults.items()), reached.drafts]
    text = bytearray(json.dumps(others).encode())
    tensors = {"text": torch.frombuffer(text, dtype=torch.uint8), "scored": reached.scored}
    if reached.verdict is not None:
        tensors |= {name: getattr(reached.verdict, name) for name in _TENSORS}
    found = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return save({name: tensor.contiguous().clone() for name, tensor in found.items()})


def read_verdict(data: bytes) -> StageVerdict:
    """Reads what `write_verdict` has written."""
    tensors = load(data)
    number, failure, faults, drafts = json.loads(tensors["text"].numpy().tobytes())
    verdict = None
    if "token_ids" in tensors:
        verdict = Verdict(**{name: tensors.get(name) for name in _TENSORS})  # type: ignore[arg-type]
    by_slot = {int(slot): text for slot, text in faults}
    return StageVerdict(number, verdict, tensors.get("scored"), failure, by_slot, drafts)


class StageMasks(Masks):
    """Refuses the grammars that the last stage refuses, and follows none.

    How far a grammar can be followed is the last stage's to say, see `StageVerdict.faults`.
    """

    def __init__(self, name: str, model: Model) -> None:
        """See `Masks`."""
        super().__init__(name, model)
        self.faults: dict[int, str] = {}
        """Why grammars of the plan to be settled can be followed no further, by slot."""

    def open(self, admission: Admission) -> str | None:
        """Returns what is wrong with the grammar of a request, or None."""
        error = super().open(admission)
        self.close(admission.slot)
        return error

    def fault(self, slot: int) -> str | None:
        """Returns why a slot's grammar can be followed no further, or None."""
        return self.faults.get(slot)
