"""The command: which pairs go through which fleets."""

import asyncio
import sys
import tempfile
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any, ClassVar

from pydantic import Field, field_validator

from optimist_bench.harness.command import (
    ProposerAlgorithm,
    format_table,
    require_known,
    run_command,
)
from optimist_bench.harness.pair import Pair, load_pairs, load_tokenizer
from optimist_bench.replicas.fleet import MODES, running_fleet
from optimist_bench.replicas.load import Load, Outcome
from optimist_common.errors import SetupError
from optimist_common.settings import CommaSeparated, ServiceSettings


class ReplicasSettings(ServiceSettings):
    """Drives replicas of the proposer with simulated requests, while they or their Redis fail.

    --json prints the report as one line of JSON instead.
    """

    section: ClassVar[str] = "bench_replicas"

    pairs: str = Field("", description="JSON lines with `before` (the prediction) and `after`")
    tokenizer: str = Field(
        "models/tiny-edit/tokenizer.json", description="tokenizer file of Hugging Face's library"
    )
    edits: int = Field(24, ge=1, description="most pairs")
    modes: CommaSeparated = Field(list(MODES), description="which of the modes, with commas")
    concurrency: int = Field(8, ge=1, le=1024, description="requests at a time")
    pass_ms: float = Field(20, gt=0, description="how long a pass takes, in ms")
    algorithm: ProposerAlgorithm = Field(
        "auto", description="what the proposers follow with: auto or line"
    )

    @field_validator("modes")
    @classmethod
    def _are_modes(cls, values: list[str]) -> list[str]:
        require_known(values, tuple(MODES))
        # The others are compared to it.
        return ["one", *(value for value in values if value != "one")]


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code: 1 if a text came out wrong."""
    return run_command(ReplicasSettings, arguments, measure, _table)


def measure(settings: ReplicasSettings) -> dict[str, Any]:
    """Runs the pairs in each mode; returns the report.

    Raises:
        SetupError: There are no pairs, or a service does not start.
    """
    if not settings.pairs:
        raise SetupError("--pairs is required (see --help)")
    tokenizer = load_tokenizer(settings.tokenizer)
    # Spread over the file, so that few pairs are of many kinds too.
    pairs = load_pairs(settings.pairs, tokenizer, 0)
    pairs = pairs[:: max(1, len(pairs) // settings.edits)][: settings.edits]
    try:
        return asyncio.run(_measure(settings, pairs))
    except ExceptionGroup as group:
        faults = group.subgroup(SetupError)
        if faults is None:
            raise
        raise SetupError(str(faults.exceptions[0])) from None


async def _measure(settings: ReplicasSettings, pairs: list[Pair]) -> dict[str, Any]:
    modes: dict[str, dict[str, Any]] = {}
    for name in settings.modes:
        mode = MODES[name]
        with tempfile.TemporaryDirectory() as directory:
            async with running_fleet(
                Path(directory), Path(settings.tokenizer), mode.num_replicas, settings.algorithm
            ) as fleet:
                load = Load(fleet, mode, pairs, settings.concurrency, settings.pass_ms / 1000)
                outcome = await load.run()
        modes[name] = _summarise(outcome)
        relative = modes["one"]["tokens_per_pass"] / modes[name]["tokens_per_pass"]
        modes[name]["relative_passes"] = round(relative, 4)
        print(f"{name}: {modes[name]}", file=sys.stderr)
    return {
        "all_right": all(mode["all_right"] for mode in modes.values()),
        "edits": len(pairs),
        "output_tokens": sum(len(pair.truth) for pair in pairs),
        "concurrency": settings.concurrency,
        "pass_ms": settings.pass_ms,
        "algorithm": settings.algorithm,
        "modes": modes,
    }


def _summarise(outcome: Outcome) -> dict[str, Any]:
    counts = outcome.counts
    p50, p99 = _percentiles(outcome.answer_seconds)
    return {
        "all_right": outcome.all_right,
        "output_tokens": outcome.num_tokens,
        "passes": outcome.num_passes,
        "tokens_per_pass": round(outcome.num_tokens / outcome.num_passes, 4),
        "answer_ms": {"p50": round(1000 * p50, 3), "p99": round(1000 * p99, 3)},
        "late_share": round(counts.late_steps / counts.steps, 4),
        "observations": counts.observations,
        "windows": counts.windows,
        "gaps": counts.gaps,
        "reopened": counts.reopened,
        "redis_bytes_per_request": _mean(outcome.request_bytes),
        "redis_bytes_per_pass": round(sum(outcome.request_bytes) / outcome.num_passes, 2),
        "redis_bytes_per_sources": _mean(outcome.source_bytes),
    }


def _percentiles(values: list[float]) -> tuple[float, float]:
    cuts = quantiles(values, n=100)
    return cuts[49], cuts[98]


def _mean(values: list[int]) -> float:
    return round(fmean(values), 1) if values else 0.0


def _table(report: dict[str, Any]) -> str:
    header = ["mode", "right", "tokens/pass", "passes", "p50 ms", "p99 ms", "late", "gaps", "bytes"]
    rows = [
        [
            name,
            "yes" if mode["all_right"] else "NO",
            mode["tokens_per_pass"],
            mode["relative_passes"],
            mode["answer_ms"]["p50"],
            mode["answer_ms"]["p99"],
            mode["late_share"],
            mode["gaps"],
            mode["redis_bytes_per_request"],
        ]
        for name, mode in report["modes"].items()
    ]
    return format_table(header, rows)
