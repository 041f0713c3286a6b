"""What a fuzz counts, and the differences that it finds."""

import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.load.answer import Answer
from tests.chaos.load.case import Case
from tests.chaos.load.client import Outcome
from tests.fuzz.draw import Drawn
from tests.stack import Process, read_metrics

_BY_SOURCE = ("drafted_tokens", "accepted_tokens")
_TOTALS = ("preemptions", "prefix_cache_hits", "worker_losses")


@dataclass
class Asked:
    """A request with its right answer."""

    drawn: Drawn
    case: Case
    """With its prediction."""
    expected: Answer


@dataclass
class Tally:
    """Counts of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    by_form: Counter[str] = field(default_factory=Counter)
    by_hint: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def count(self, one: Asked, outcome: Outcome) -> None:
        """Counts a request that has ended."""
        case, ending = one.case, str(outcome.ending)
        self.counts["requests"] += 1
        self.counts["failed as undrafted" if one.expected.failure else ending] += 1
        self.counts[case.kind.rpartition(" ")[2]] += 1
        self.counts["choices"] += case.body.get("n", 1)
        self.counts["sampled"] += case.is_sampled
        self.counts["refused and asked again"] += outcome.num_refused
        self.by_form[one.drawn.form.kind if one.drawn.form else "none"] += 1
        self.by_hint[one.drawn.hint] += 1

    def count_figures(self, scheduler: Process, worker: Process) -> None:
        """Adds what the services of a server counted from their start to their end."""
        figures = read_metrics(scheduler.metrics_url)
        for labelled, value in figures.items():
            name, _, labels = labelled.removeprefix("optimist_scheduler_").partition("{")
            name = name.removesuffix("_total")
            if name in _BY_SOURCE:
                source = labels.partition('source="')[2].partition('"')[0]
                self.figures[f"{name} {source}"] += int(value)
            elif name in _TOTALS:
                self.figures[name] += int(value)
        rows = read_metrics(worker.metrics_url)["optimist_worker_row_errors_total"]
        self.figures["row_errors"] += int(rows)

    def differs(self, one: Asked, outcome: Outcome, what: str, server: str, again: str) -> None:
        """Notes a request whose answer is not right, and shows it."""
        case = one.case
        shown = {
            "request": one.drawn.number,
            "what": what,
            "asked again alone": again,
            "server": server,
            "path": case.path,
            "protocol": case.protocol,
            "body": case.body,
            "leave_seconds": one.drawn.leave_seconds,
            "expected": asdict(one.expected),
            "got": asdict(outcome.answer),
            "message": outcome.message,
        }
        self.fault(f"request {one.drawn.number}: {what}"[:500])
        print(json.dumps(shown, ensure_ascii=False), file=sys.stderr, flush=True)  # noqa: T201

    def fault(self, what: str) -> None:
        """Notes something wrong."""
        self.faults.append(what)
        print(what, file=sys.stderr, flush=True)  # noqa: T201

    def report(self) -> dict[str, Any]:
        """Returns everything for the end of a run."""
        return {
            **dict(sorted(self.counts.items())),
            "by_form": dict(sorted(self.by_form.items())),
            "by_prediction": dict(sorted(self.by_hint.items())),
            **dict(sorted(self.figures.items())),
            "differences": len(self.faults),
            "faults": self.faults[:20],
            "all_right": not self.faults and self.counts["requests"] > 0,
        }
