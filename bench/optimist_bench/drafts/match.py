"""Contenders measured in turn on the same prompts."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from optimist_bench.drafts.contender import Contender, Run, children_cpu_seconds
from optimist_bench.peers.engine import TokenIds

BASELINE = "baseline"
PREDICTED = "predicted"
TOGETHER = "together"
NUM_WARM_UP = 2
"""Prompts that each contender answers before, for each number at a time."""

Role = Literal["baseline", "predicted", "together", "source", "peer"]


@dataclass(frozen=True)
class Entrant:
    """A contender under the name that it has in the report."""

    name: str
    role: Role
    contender: Contender
    with_predictions: bool = False


@dataclass
class Score:
    """What an entrant reached."""

    entrant: Entrant
    runs: dict[int, list[Run]] = field(default_factory=dict)
    """By how many prompts were answered at a time."""
    cpu_seconds: dict[int, list[float]] = field(default_factory=dict)
    """Processor time of each run, of all its processes; empty where it is unknown."""

    def seconds(self, concurrency: int) -> float:
        """Returns the wall time of the best run."""
        return min(run.seconds for run in self.runs[concurrency])

    def best_cpu_seconds(self, concurrency: int) -> float | None:
        """Returns the least processor time of a run, if known."""
        return min(self.cpu_seconds.get(concurrency, []), default=None)


@dataclass(frozen=True)
class Match:
    """Who answers the same prompts in the least time."""

    prompts: list[TokenIds]
    predictions: list[TokenIds]
    """For the entrants that take them, one per prompt."""
    concurrencies: tuple[int, ...]
    """How many prompts are answered at a time; measured one after the other."""

    def play(self, entrants: Sequence[Entrant], num_rounds: int) -> list[Score]:
        """Lets all answer all prompts in turn, round by round, every second round backwards.

        So what changes on the machine meanwhile meets all alike.
        """
        scores = [Score(entrant) for entrant in entrants]
        for score in scores:
            _say(f"warming up {score.entrant.name}")
            for concurrency in self.concurrencies:
                self._run(score.entrant, concurrency, max(NUM_WARM_UP, concurrency))
        for number in range(num_rounds):
            for score in scores if number % 2 == 0 else scores[::-1]:
                _say(f"round {number + 1} of {num_rounds}: {score.entrant.name}")
                for concurrency in self.concurrencies:
                    before = children_cpu_seconds()
                    run = self._run(score.entrant, concurrency, len(self.prompts))
                    after = children_cpu_seconds()
                    score.runs.setdefault(concurrency, []).append(run)
                    if before is not None and after is not None:
                        score.cpu_seconds.setdefault(concurrency, []).append(after - before)
        return scores

    def _run(self, entrant: Entrant, concurrency: int, num_prompts: int) -> Run:
        predictions = self.predictions[:num_prompts] if entrant.with_predictions else []
        return entrant.contender.answer(self.prompts[:num_prompts], concurrency, predictions)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
