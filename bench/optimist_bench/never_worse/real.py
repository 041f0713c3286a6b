"""The same for real: two servers of one model, with drafts and without, asked in turn over HTTP."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import Any

from optimist_bench.engines.asking import Asker
from optimist_bench.engines.servers import running_engine
from optimist_bench.engines.workloads import Prompt
from optimist_bench.never_worse.grid import ARRIVALS
from optimist_bench.never_worse.record import MAX_TOKENS, make_questions, make_rewrites
from optimist_bench.never_worse.texts import WORKLOADS, make_workload

_DRAFTING, _PLAIN = "optimist", "optimist-plain"
_LEAST_PROMPTS = 16
_WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class RealRun:
    """What is measured."""

    model: str
    dtype: str
    files: str
    workloads: Sequence[str]
    rows: Sequence[int]
    turns: int
    num_threads: int


@dataclass(frozen=True)
class _Cell:
    workload: str
    rows: int
    arrivals: str


def run_for_real(run: RealRun) -> Iterator[dict[str, Any]]:
    """Iterates over the cells: medians of the ratios of all turns, each of two runs on end.

    Raises:
        SetupError: A file is missing, a server does not start, or a request fails.
    """
    rewrites, questions = make_rewrites(run.files), make_questions()
    files = [each.prediction or "" for each in rewrites]
    prompts = {
        name: [
            replace(prompt, prediction=attached or None)
            for prompt, attached in make_workload(name, rewrites, questions, files)
        ]
        for name in WORKLOADS
    }
    cells = [
        _Cell(workload, rows, arrivals)
        for workload in run.workloads
        for rows in run.rows
        for arrivals in ARRIVALS[rows == 1 :]
    ]
    ratios: dict[_Cell, list[float]] = {cell: [] for cell in cells}
    num_different = dict.fromkeys(cells, 0)
    with ExitStack() as stack:
        askers = {
            name: stack.enter_context(closing(Asker(name, stack.enter_context(_server(name, run)))))
            for name in (_DRAFTING, _PLAIN)
        }
        for asker in askers.values():
            asker.ask_all(prompts["mixed"][: max(run.rows)], max(run.rows), _WARM_UP_TOKENS)
        for turn in range(run.turns):
            for cell in cells:
                asked = prompts[cell.workload][: max(_LEAST_PROMPTS, cell.rows)]
                order = (_DRAFTING, _PLAIN) if turn % 2 else (_PLAIN, _DRAFTING)
                seconds, texts = {}, {}
                for name in order:
                    seconds[name], texts[name] = _ask(askers[name], cell, asked)
                ratios[cell].append(seconds[_PLAIN] / seconds[_DRAFTING])
                pairs = zip(texts[_PLAIN], texts[_DRAFTING], strict=True)
                num_different[cell] += sum(one != other for one, other in pairs)
                print(f"turn {turn + 1}: {cell}: {ratios[cell][-1]:.3f}", file=sys.stderr)
    for cell in cells:
        yield {
            "workload": cell.workload,
            "rows": cell.rows,
            "arrivals": cell.arrivals,
            "curve": "real",
            "scenario": "none",
            "state": "warm",
            "ratio": round(median(ratios[cell]), 4),
            "ratios": [round(ratio, 4) for ratio in ratios[cell]],
            "num_different_texts": num_different[cell],
            "is_virtual": False,
        }


def _server(name: str, run: RealRun) -> Any:
    return running_engine(name, run.model, run.dtype, "", run.num_threads)


def _ask(asker: Asker, cell: _Cell, prompts: Sequence[Prompt]) -> tuple[float, list[str]]:
    """Returns seconds for all prompts, and the answers."""
    size = cell.rows if cell.arrivals == "bursts" else len(prompts)
    rounds = [
        asker.ask_all(prompts[start : start + size], cell.rows, MAX_TOKENS)
        for start in range(0, len(prompts), size)
    ]
    answers = chain.from_iterable(each.answers for each in rounds)
    return sum(each.seconds for each in rounds), [answer.text for answer in answers]
