"""The cells of the grid, each run in virtual time with drafts and without, on several processes."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from optimist_bench.harness.pair import Pair, load_tokenizer, load_vocabulary
from optimist_bench.never_worse.curves import CURVES
from optimist_bench.never_worse.texts import Texts, make_pairs
from optimist_bench.never_worse.virtual_run import Phase, Run, run_virtually

SCENARIOS = ("none", "stalls", "busy-start", "tails", "restart")
"""Nothing; a pass in 33 takes ten times as long; the worker's start timings are wrong; one request
alone before each burst; another scheduler takes over in the middle."""
ARRIVALS = ("bursts", "busy")
"""All begin together, or a new one begins when one ends."""
SCENARIO_ROWS = 8
_COLD_REQUESTS, _WARM_REQUESTS = 4, 16
"""Least requests of a phase."""
_WITHOUT_PREDICTIONS = {"holds": "nothing", "partly": "nothing", "never": "chat"}
"""Where the same comes out, by workload: without drafts these are the same runs."""


@dataclass(frozen=True)
class Cell:
    """What is run with drafts and without, but for its state."""

    workload: str
    rows: int
    arrivals: str
    curve: str
    scenario: str = "none"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What is run first, when the scheduler knows nothing, and after that."""
        if self.scenario == "restart":
            return Phase("cold", self._groups(1)), Phase("restarted", self._groups(2), True)
        return Phase("cold", self._groups(1)), Phase("warm", self._groups(2))

    def _groups(self, least_times: int) -> tuple[int, ...]:
        least = _COLD_REQUESTS if least_times == 1 else _WARM_REQUESTS
        if self.arrivals == "busy":
            return (max(least, 2 * self.rows),)
        number = math.ceil(least / self.rows)
        if self.scenario == "tails":
            return (1, self.rows) * max(number, 2)
        return (self.rows,) * number

    def make_run(self, **drafting: Any) -> Run:
        """Returns the run, with what it says of drafts."""
        return Run(
            rows=self.rows,
            phases=self.phases,
            curve=CURVES[self.curve],
            has_stalls=self.scenario == "stalls",
            starts_busy=self.scenario == "busy-start",
            **drafting,
        )


def find_cells(
    workloads: Sequence[str], rows: Sequence[int], curves: Sequence[str], scenarios: Sequence[str]
) -> Iterator[Cell]:
    """Iterates over the cells; one request at a time is always busy."""
    for scenario in scenarios:
        for curve in curves:
            for number in rows if scenario == "none" else (SCENARIO_ROWS,):
                arrivals = ARRIVALS[number == 1 :] if scenario == "none" else ARRIVALS[:1]
                for each in arrivals:
                    for workload in workloads:
                        yield Cell(workload, number, each, curve, scenario)


_texts: Texts
"""Of this process."""


def _begin(texts: Texts) -> None:
    global _texts
    _texts = texts


@cache
def _load(tokenizer: str) -> tuple[Any, Any]:
    loaded = load_tokenizer(tokenizer)
    return loaded, load_vocabulary(loaded)


@cache
def _make_pairs(workload: str) -> list[Pair]:
    return make_pairs(_texts, workload, _load(_texts.tokenizer)[0])


def _run(cell: Cell, drafting: dict[str, Any]) -> list[float]:
    run = cell.make_run(**drafting)
    return run_virtually(run, _make_pairs(cell.workload), _load(_texts.tokenizer)[1])


def run_cells(
    cells: Sequence[Cell], texts: Texts, draft_width: str, num_processes: int
) -> Iterator[dict[str, Any]]:
    """Iterates over the results of all cells, in their order; each has a state too.

    Args:
        cells: What to run.
        texts: What the requests are made of.
        draft_width: The scheduler's policy with drafts.
        num_processes: How many run at a time.
    """
    with ProcessPoolExecutor(num_processes, initializer=_begin, initargs=(texts,)) as pool:
        plain: dict[Cell, Future[list[float]]] = {}
        drafted: dict[Cell, Future[list[float]]] = {}
        for cell in cells:
            same = _find_same(cell)
            if same not in plain:
                plain[same] = pool.submit(_run, same, {"num_speculative_tokens": 0})
            drafted[cell] = pool.submit(_run, cell, {"draft_width": draft_width})
        for cell in cells:
            pairs = zip(drafted[cell].result(), plain[_find_same(cell)].result(), strict=True)
            for phase, (seconds, plain_seconds) in zip(cell.phases, pairs, strict=True):
                if cell.scenario == "restart" and phase.state == "cold":
                    continue
                yield {
                    "workload": cell.workload,
                    "rows": cell.rows,
                    "arrivals": cell.arrivals,
                    "curve": cell.curve,
                    "scenario": cell.scenario,
                    "state": phase.state,
                    "ratio": round(plain_seconds / seconds, 4),
                    "is_virtual": True,
                }


def _find_same(cell: Cell) -> Cell:
    workload = _WITHOUT_PREDICTIONS.get(cell.workload, cell.workload)
    return Cell(workload, cell.rows, cell.arrivals, cell.curve, cell.scenario)
