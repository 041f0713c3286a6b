"""A step between its parts: what was prepared, what the target made of it, what is given back."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.batch.bounds import StepBounds
from optimist_worker.core.batch.flat_batch import FlatBatch, PassSize
from optimist_worker.core.batch.logprobs import LogprobPlaces
from optimist_worker.core.batch.slot_table import FittedRows
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.ragged import Ragged
from optimist_worker.drafters.drafter import Proposal


class Stopwatch(Protocol):
    """Takes the time that drafting takes."""

    def start(self) -> None:
        """Drafting begins."""

    def stop(self) -> None:
        """Drafting ends."""


class Allowing(Protocol):
    """Knows which tokens grammars allow."""

    def allowed(self, slots: torch.Tensor, drafts: Drafts, nodes: Ragged) -> torch.Tensor | None:
        """Returns what may come after each node, bool `[num_logits, vocab_size]`; None: all."""


class StepTensors(NamedTuple):
    """What a step gives back, on the device."""

    packed: torch.Tensor
    """What `outputs.pack` has packed."""
    scored: torch.Tensor | None
    """Log-probabilities of new tokens, then of prompts', see `logprobs`; None if no one wants any,
    or no row could run."""


@dataclass(slots=True)
class PreparedStep:
    """A step before its pass: all of it follows from the state and the plan."""

    rows: FittedRows
    bounds: StepBounds
    places: torch.Tensor | None
    """Where drafts lie in their windows, see `WindowDrafts`."""
    proposal: Proposal
    size: PassSize
    nodes: Ragged
    """Which node of which row each row of logits is after, see `VerifyPass`."""
    wanted: LogprobPlaces | None
    batch: FlatBatch | None = None
    """None if no row can run."""
    tokens: Ragged | None = None
    """How the tokens of the batch belong to rows."""


class JudgedStep(NamedTuple):
    """What the target makes of a step."""

    verdict: Verdict
    scored: torch.Tensor | None
    """See `StepTensors`."""
