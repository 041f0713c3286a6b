"""What the last stage has made of a plan: as bytes for the others, and the grammars' part of it."""

import json
from dataclasses import dataclass, field

import numpy as np
import torch

from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.plan import Admission
from optimist_worker.core.ragged import Ragged
from optimist_worker.model.masks import Masks

_NUM_SIZES = 6


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
    """Returns a verdict's bytes."""
    text = json.dumps(
        [reached.number, reached.failure, list(reached.faults.items()), reached.drafts]
    ).encode()
    verdict, scored = reached.verdict, reached.scored
    # Rows, tokens and nodes of each row, scored places, numbers of each, length of the text.
    sizes = [-1, 0, -1, -1, 0, len(text)]
    parts: list[torch.Tensor] = []
    if verdict is not None:
        sizes[:2] = verdict.token_ids.shape
        columns = [verdict.num_accepted[:, None], verdict.is_finite[:, None], verdict.token_ids]
        if verdict.path is not None:
            sizes[2] = verdict.path.shape[1]
            columns.append(verdict.path)
        parts.append(torch.cat([column.int() for column in columns], 1))
    if scored is not None:
        sizes[3:5] = scored.shape
        parts.append(scored)
    arrays = [np.array(sizes, np.int32), *(part.int().cpu().numpy() for part in parts)]
    return b"".join(array.tobytes() for array in arrays) + text


def read_verdict(data: bytes) -> StageVerdict:
    """Reads what `write_verdict` has written."""
    rows, width, depth, places, numbers, num_text = np.frombuffer(data, np.int32, _NUM_SIZES)
    end = len(data) - int(num_text)
    number, failure, faults, drafts = json.loads(data[end:])
    values = torch.frombuffer(bytearray(data[:end]), dtype=torch.int32)[_NUM_SIZES:]
    verdict, scored = None, None
    if rows >= 0:
        num_columns = int(2 + width + max(depth, 0))
        table, values = values.tensor_split([int(rows) * num_columns])
        table = table.view(int(rows), num_columns).long()
        verdict = Verdict(
            token_ids=table[:, 2 : 2 + width].contiguous(),
            num_accepted=table[:, 0].contiguous(),
            path=table[:, 2 + width :].contiguous() if depth >= 0 else None,
            is_finite=table[:, 1] != 0,
        )
    if places >= 0:
        scored = values.view(int(places), int(numbers))
    return StageVerdict(
        number, verdict, scored, failure, {int(slot): text for slot, text in faults}, drafts
    )


class StageMasks:
    """Refuses the grammars that the last stage refuses, and follows none.

    How far a grammar can be followed is the last stage's to say, see `StageVerdict.faults`.
    """

    def __init__(self, masks: Masks) -> None:
        """Tries grammars with those of a model."""
        self._masks = masks
        self._faults: dict[int, str] = {}

    def open(self, admission: Admission) -> str | None:
        """Returns what is wrong with the grammar of a request, or None."""
        error = self._masks.open(admission)
        self._masks.close(admission.slot)
        return error

    def close(self, slot: int) -> None:
        """Forgets a slot."""

    def note_faults(self, faults: dict[int, str]) -> None:
        """Notes which grammars of the plan to be settled can be followed no further."""
        self._faults = faults

    def commit(self, slot: int, token_ids: list[int]) -> str | None:
        """Returns why a slot's grammar cannot be followed further, or None."""
        return self._faults.get(slot)

    def allowed(self, slots: torch.Tensor, drafts: Drafts, nodes: Ragged) -> torch.Tensor | None:
        """Restricts nothing, because nothing is chosen here."""
        return None
