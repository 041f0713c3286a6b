"""Draws the report of `optimist bench engines`: bars, a panel for each number of streams."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from optimist_common.errors import SetupError

_COLOURS = (
    *("#1f77d0", "#9ab8d8", "#c9712b", "#e3b184"),
    *("#5a9e6f", "#a78bc0", "#8a8f98", "#c46a94"),
)
"""Of the engines, in their order; each is readable on white and on black."""
# What Matplotlib writes for text and ground, and what a style sheet makes of it.
_INK, _GROUND = "#24292e", "#fefefe"
_STYLE = (
    f"<style>svg{{--ink:{_INK};--ground:#ffffff}}"
    "@media(prefers-color-scheme:dark){svg{--ink:#e6edf3;--ground:#0d1117}}</style>"
)


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draws tokens per second with their spread into an SVG file, dark where the reader's page is.

    Raises:
        SetupError: The file cannot be written.
    """
    streams = sorted({row["streams"] for row in report["rows"]})
    with mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "optimist",
            "text.color": _INK,
            "axes.edgecolor": _INK,
        }
    ):
        figure = Figure(
            figsize=(10.5, 2.6 * len(streams) + 1),
            facecolor=_GROUND,
            layout=ConstrainedLayoutEngine(h_pad=0.09),
        )
        panels = figure.subplots(len(streams), 1, squeeze=False)[:, 0]
        for panel, number in zip(panels, streams, strict=True):
            _draw_panel(panel, [row for row in report["rows"] if row["streams"] == number])
            panel.set_title(f"{number} at a time" if number > 1 else "one at a time", fontsize=10)
            panel.set_ylabel("tokens per second", color=_INK)
        bars, names = panels[0].get_legend_handles_labels()
        figure.legend(bars, names, loc="outside lower center", ncols=len(names), frameon=False)
        figure.suptitle(
            f"{Path(report['model']).name}, {report['dtype']}, {report['cpu']}", fontsize=11
        )
        try:
            figure.savefig(path, format="svg", metadata={"Date": None})
        except OSError as error:
            raise SetupError(f"--plot: cannot write {path}: {error.strerror}") from None
    text = path.read_text(encoding="utf-8")
    text = text.replace(_INK, "var(--ink)").replace(_GROUND, "var(--ground)")
    path.write_text(text.replace("<defs>", f"{_STYLE}\n <defs>", 1), encoding="utf-8")


def _draw_panel(panel: Axes, rows: list[dict[str, Any]]) -> None:
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    width = 0.8 / len(engines)
    for number, engine in enumerate(engines):
        mine = [row for row in rows if row["engine"] == engine]
        rates = [row["tokens_per_second"] for row in mine]
        spread = [
            [row["tokens_per_second"] - row["tokens_per_second_min"] for row in mine],
            [row["tokens_per_second_max"] - row["tokens_per_second"] for row in mine],
        ]
        offset = (number - (len(engines) - 1) / 2) * width
        bars = panel.bar(
            [workloads.index(row["workload"]) + offset for row in mine],
            rates,
            0.94 * width,
            color=_COLOURS[number % len(_COLOURS)],
            label=engine,
            yerr=spread,
            error_kw={"ecolor": _INK, "elinewidth": 1, "capsize": 2},
        )
        panel.bar_label(bars, fmt="%.0f", fontsize=8, padding=2)
    panel.set_xticks(range(len(workloads)), workloads)
    panel.tick_params(colors=_INK, labelsize=9)
    panel.tick_params(axis="x", length=0)
    panel.set_facecolor("none")
    panel.spines[["top", "right"]].set_visible(False)
    panel.margins(y=0.12)
