"""The figures of many simulated requests."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from optimist_aligner import IS_COMPILED
from optimist_bench.harness.command import format_table
from optimist_bench.harness.pair import BUCKETS
from optimist_bench.predictions.oracle import Course
from optimist_bench.predictions.simulator import ENDS, Outcome


def summarise(
    outcomes: Sequence[Outcome], *, method: str, window: int, marginal_cost: float
) -> dict[str, Any]:
    """Returns the report of one method at one window."""
    return {
        "method": method,
        "window": window,
        "marginal_cost": marginal_cost,
        "aligner_is_compiled": IS_COMPILED,
        **_figures(outcomes, marginal_cost),
        **{f"by_{name}": _grouped(outcomes, marginal_cost, name) for name in _groupings(outcomes)},
    }


def _groupings(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(name for one in outcomes for name in one.pair.groups))


def explain_passes(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Returns where passes go: how many by what ended them, and what the span oracle had more."""
    passes: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for one in outcomes:
        passes.update(one.run.ends)
        lost.update(one.run.lost_tokens)
    return {
        "passes_by_end": {end: passes[end] for end in ENDS},
        "lost_tokens": {end: lost[end] for end in ENDS},
    }


def _grouped(
    outcomes: Sequence[Outcome], marginal_cost: float, grouping: str
) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Outcome]] = {}
    for one in outcomes:
        if grouping in one.pair.groups:
            groups.setdefault(one.pair.groups[grouping], []).append(one)
    order = {name: number for number, name in enumerate(BUCKETS)}
    names = sorted(groups, key=lambda name: (order.get(name, 0), name))
    return {name: _figures(groups[name], marginal_cost) for name in names}


def _figures(outcomes: Sequence[Outcome], marginal_cost: float) -> dict[str, Any]:
    runs = [one.run for one in outcomes]
    num_tokens = sum(len(run.emitted) for run in runs)
    num_passes = sum(run.num_passes for run in runs)
    accepted = sum(run.num_accepted for run in runs)
    wasted = sum(run.num_drafted for run in runs) - accepted
    oracle = [one.oracle for one in outcomes]
    own = [one.oracle_own for one in outcomes]
    pass_seconds = [seconds for run in runs for seconds in run.pass_seconds]
    return {
        "pairs": len(outcomes),
        "output_tokens": num_tokens,
        "passes": num_passes,
        "tokens_per_pass": _ratio(num_tokens, num_passes),
        "oracle_tokens_per_pass": _ratio(num_tokens, sum(one.num_passes for one in oracle)),
        "oracle_own_tokens_per_pass": _ratio(num_tokens, sum(one.num_passes for one in own)),
        "wasted_per_accepted": _ratio(wasted, accepted),
        "speedup": _ratio(num_tokens, sum(run.cost for run in runs)),
        "oracle_speedup": _ratio(num_tokens, _oracle_cost(oracle, marginal_cost)),
        "oracle_own_speedup": _ratio(num_tokens, _oracle_cost(own, marginal_cost)),
        "proposer_us": percentiles(pass_seconds, 1e6),
        "start_ms": percentiles([run.start_seconds for run in runs], 1e3),
    }


def _oracle_cost(courses: Sequence[Course], marginal_cost: float) -> float:
    # It drafts what is accepted and nothing else.
    return sum(one.num_passes + marginal_cost * one.num_accepted for one in courses)


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def percentiles(seconds: Sequence[float], scale: float) -> dict[str, float | None]:
    """Returns the 50th and the 99th percentile times `scale`; None of no values."""
    if not seconds:
        return {"p50": None, "p99": None}
    middle, high = np.percentile(seconds, (50, 99)) * scale
    return {"p50": round(float(middle), 2), "p99": round(float(high), 2)}


def describe(reports: Sequence[dict[str, Any]]) -> str:
    """Returns the reports as tables: totals, then the speedup by group."""
    totals = [
        [
            report["method"],
            report["window"],
            report["marginal_cost"],
            *(
                _shown(report[key])
                for key in (
                    "tokens_per_pass",
                    "oracle_tokens_per_pass",
                    "wasted_per_accepted",
                    "speedup",
                    "oracle_speedup",
                )
            ),
            _shown(report["proposer_us"]["p50"], 1),
            _shown(report["proposer_us"]["p99"], 1),
            _shown(report["start_ms"]["p99"]),
        ]
        for report in reports
    ]
    header = ["method", "window", "cost", "tokens/pass", "oracle", "wasted", "speedup"]
    header += ["oracle's", "us p50", "us p99", "start ms p99"]
    tables = [format_table(header, totals)]
    for key in [key for key in reports[0] if key.startswith("by_")]:
        names = list(reports[0][key])
        rows = [
            [
                report["method"],
                report["window"],
                *(_shown(report[key][name]["speedup"]) for name in names),
            ]
            for report in reports
        ]
        title = key.removeprefix("by_").replace("_", " ")
        tables += [f"Speedup by {title}:", format_table(["method", "window", *names], rows)]
    if "passes_by_end" in reports[0]:
        rows = [
            [
                report["method"],
                report["window"],
                *(f"{report['passes_by_end'][end]} ({report['lost_tokens'][end]})" for end in ENDS),
            ]
            for report in reports
        ]
        tables += [
            "Passes by what ended them (tokens that the span oracle had more):",
            format_table(["method", "window", *ENDS], rows),
        ]
    return "\n\n".join(tables)


def _shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
