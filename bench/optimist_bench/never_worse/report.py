"""The report: the cells, the worst of them, and a table by workload and curve."""

from collections.abc import Sequence
from statistics import median
from typing import Any

LEAST_RATIO = 0.98
"""Tokens per time with drafts, of those without, that no cell may be below."""
COORDINATES = ("workload", "rows", "arrivals", "curve", "scenario", "state")


def make_report(cells: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Returns the report on all cells."""
    return {
        "seconds": round(seconds, 1),
        "all_right": not any(cell.get("num_different_texts") for cell in cells),
        "cells": list(cells),
        "worst": min(cells, key=lambda cell: cell["ratio"], default=None),
        "virtual": _summarise([cell for cell in cells if cell["is_virtual"]]),
        "real": _summarise([cell for cell in cells if not cell["is_virtual"]]),
    }


def _summarise(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    ratios = [cell["ratio"] for cell in cells]
    return {
        "cells": len(ratios),
        "below": sum(ratio < LEAST_RATIO for ratio in ratios),
        "worst": min(ratios, default=None),
        "median": round(median(ratios), 4) if ratios else None,
    }


def name_cell(cell: dict[str, Any]) -> str:
    """Returns a cell's coordinates in words."""
    return ", ".join(f"{name} {cell[name]}" for name in COORDINATES)


def describe(report: dict[str, Any]) -> str:
    """Returns worst and median ratios by workload and curve, as a table in Markdown."""
    curves = list(dict.fromkeys(cell["curve"] for cell in report["cells"]))
    workloads = list(dict.fromkeys(cell["workload"] for cell in report["cells"]))
    lines = [
        f"| worst, median | {' | '.join(curves)} |",
        "|---" * (1 + len(curves)) + "|",
    ]
    for workload in workloads:
        found = (
            [
                cell["ratio"]
                for cell in report["cells"]
                if (cell["workload"], cell["curve"]) == (workload, curve)
            ]
            for curve in curves
        )
        ratios = " | ".join(
            f"{min(each):.3f}, {median(each):.2f}" if each else "" for each in found
        )
        lines.append(f"| {workload} | {ratios} |")
    worst = report["worst"]
    if worst is not None:
        lines += ["", f"Worst: {worst['ratio']:.3f} ({name_cell(worst)})."]
    below = report["virtual"]["below"] + report["real"]["below"]
    lines.append(f"Below {LEAST_RATIO}: {below} of {len(report['cells'])}.")
    return "\n".join(lines)
