"""`optimist bench graphs`: how many steps of recorded traffic would replay a captured one."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from optimist_bench.harness.command import format_table, run_command
from optimist_common.errors import SetupError
from optimist_common.settings import ServiceSettings

if TYPE_CHECKING:
    from optimist_worker.core.batch.host_view import StepBounds


class GraphsSettings(ServiceSettings):
    """Takes a trace of steps through the worker's sizes and its cache of graphs, without a GPU:
    nothing is captured, but it is counted what would be."""

    section: ClassVar[str] = "bench_graphs"

    trace: str = Field(description="file with the bounds of each step, a JSON object a line")
    max_num_seqs: int = Field(64, ge=1, le=4096, description="slots of the worker")
    max_num_batched_tokens: int = Field(
        2048, ge=1, le=2**20, description="most tokens in one forward pass of the worker"
    )
    at_start: int = Field(
        160, ge=0, le=4096, description="most sizes for whose capture a start has time"
    )
    network: bool = Field(False, description="whether the worker's drafter is a network")


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    return run_command(GraphsSettings, arguments, _measure, _describe)


def _measure(settings: GraphsSettings) -> dict[str, Any]:
    steps = read_trace(settings.trace)
    return {
        "trace": settings.trace,
        "policies": [
            {"policy": "few sizes, captured at start"} | _replay_sizes(steps, settings),
            {"policy": "exact bounds, captured when met twice"} | _replay_exact(steps),
        ],
    }


def read_trace(path: str) -> list[StepBounds]:
    """Reads the steps of a trace; lines with a plan are passed over. Raises SetupError."""
    # PyTorch takes seconds.
    from optimist_worker.core.acceptance.sampling_table import Needs
    from optimist_worker.core.batch.host_view import StepBounds

    steps, number = [], 0
    try:
        for line in Path(path).read_text("utf-8").splitlines():
            number += 1
            fields = json.loads(line)
            if "plan" not in fields:
                steps.append(StepBounds(**fields | {"needs": Needs(*fields["needs"])}))
    except OSError as error:
        raise SetupError(f"--trace: cannot read {path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise SetupError(f"--trace: line {number} of {path} is no step: {error}") from None
    if not steps:
        raise SetupError(f"--trace: {path} has no steps")
    return steps


def _replay_sizes(steps: Sequence[StepBounds], settings: GraphsSettings) -> dict[str, Any]:
    """Goes through the steps as the worker does, with a capture that only counts."""
    from optimist_worker.core.batch.step_sizes import StepSizes
    from optimist_worker.execution.graphs import MOST_TOKENS, GraphCache

    # Any vocabulary will do: a kernel chooses where no network drafts.
    widest_cut = None if settings.network else 2**17
    sizes = StepSizes(settings.max_num_batched_tokens, widest_cut, settings.network)
    counts: Counter[str] = Counter()
    nothing: Any = None

    def count(what: str) -> Any:
        counts[what] += 1
        return nothing

    def capture(_inputs: Any, _function: Any) -> Any:
        what = "replayed" if counts["is_ready"] else "replayed_from_start"
        counts["captured"] += 1
        return lambda _: count(what)

    cache = GraphCache(capture)
    has_drafter = any(step.uses_drafter for step in steps)
    usual = sizes.at_start(MOST_TOKENS, settings.max_num_seqs, has_drafter=has_drafter)
    for size, _ in zip(usual, range(settings.at_start), strict=False):
        cache.run(size, nothing, lambda _: nothing)
    at_start = counts["captured"]
    # Of a size that came twice.
    del counts["replayed_from_start"]
    counts["is_ready"] = 1
    used, num_tokens = set(), 0
    for step in steps:
        size = sizes.size_of(step)
        if size.num_tokens <= MOST_TOKENS and not size.has_grammar:
            size = cache.fit(size)
            cache.run(size, nothing, lambda _: count("ran"))
        else:
            count("ran")
        used.add(size)
        num_tokens += size.num_tokens
    anew, from_start = counts["captured"] - at_start, counts["replayed_from_start"]
    return _shares(steps, counts["ran"] - anew, anew, counts["replayed"] + from_start) | {
        "from_start": from_start / len(steps),
        "captured_at_start": at_start,
        "keys": len(used),
        "padding": num_tokens / sum(step.num_tokens for step in steps),
    }


def _replay_exact(steps: Sequence[StepBounds]) -> dict[str, Any]:
    """Captures a step whose bounds come for the second time, with as many graphs."""
    from optimist_worker.execution.graphs import MOST_GRAPHS, MOST_TOKENS

    graphs: OrderedDict[StepBounds, int] = OrderedDict()
    counts, used = Counter[int](), set()
    for step in steps:
        # Nothing in a graph depends on what a step is planned by.
        key = replace(step, least_chance=0.0, max_drafter_tokens=None, num_form_tokens=0)
        used.add(key)
        if key.num_tokens > MOST_TOKENS or key.has_grammar:
            counts[0] += 1
            continue
        times = graphs[key] = min(2, graphs.get(key, -1) + 1)
        counts[times] += 1
        graphs.move_to_end(key)
        if len(graphs) > MOST_GRAPHS:
            graphs.popitem(last=False)
    return _shares(steps, counts[0], counts[1], counts[2]) | {
        "from_start": 0.0,
        "captured_at_start": 0,
        "keys": len(used),
        "padding": 1.0,
    }


def _shares(steps: Sequence[StepBounds], eager: int, anew: int, replayed: int) -> dict[str, Any]:
    number = len(steps)
    return {
        "steps": number,
        "eager": eager / number,
        "captured_anew": anew / number,
        "replayed": replayed / number,
    }


def _describe(report: dict[str, Any]) -> str:
    policies = report["policies"]
    return format_table(list(policies[0]), [list(row.values()) for row in policies])
