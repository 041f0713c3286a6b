"""`optimist bench windows`: what proposers cost on the way from one pass to the next."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from optimist_bench.harness.case_text import functions
from optimist_bench.harness.command import ProposerAlgorithm, format_table, run_command
from optimist_bench.harness.pair import (
    Pair,
    load_pairs,
    load_tokenizer,
    load_vocabulary,
    make_pair,
)
from optimist_bench.harness.simulated_service import (
    SimulatedSettings,
    describe_model,
    find_step_us,
    make_model,
)
from optimist_bench.harness.virtual.settings import VirtualSettings
from optimist_bench.harness.virtual.stack import Load, Stack
from optimist_bench.harness.virtual.timeline import Cores, Timeline
from optimist_common.settings import ServiceSettings
from optimist_scheduler.core.base.values import Ended, StepOutputs
from optimist_scheduler.settings import SchedulerSettings

NUM_FUNCTIONS = 24
"""Of each generated text."""
NUM_TEXTS = 32


class WindowsSettings(VirtualSettings, ServiceSettings):
    """Runs requests with predictions in virtual time, on the cores of proposers and scheduler.

    The model says the text of each edit; passes take a given time. --json prints the report as one
    line of JSON instead.
    """

    section: ClassVar[str] = "bench_windows"

    pairs: str = Field("", description="JSON lines with `before` and `after`; empty: generated")
    tokenizer: str = Field(
        "models/tiny-edit/tokenizer.json", description="tokenizer file of Hugging Face's library"
    )
    algorithm: ProposerAlgorithm = Field(
        "auto", description="what the proposers follow with: auto or line"
    )
    requests: int = Field(256, ge=1, le=100_000, description="requests, the texts in turn")
    concurrency: int = Field(64, ge=1, le=1024, description="requests at a time")
    replicas: int = Field(1, ge=1, le=16, description="proposers, each with a memory of its own")
    pass_ms: float = Field(20.0, gt=0, description="how long a pass takes without its tokens")
    token_us: int = Field(5, ge=0, description="how much longer each token makes it")
    free_tokens: int = Field(0, ge=0, description="tokens of a pass that make it no longer")
    pass_row_us: int = Field(0, ge=0, description="how much longer each request makes it")
    depth: int = Field(2, ge=1, le=3, description="plans in flight")

    def simulated(self) -> SimulatedSettings:
        """Returns the settings of the simulated worker, but for its texts."""
        return SimulatedSettings(
            step_us=round(1000 * self.pass_ms),
            token_us=self.token_us,
            free_tokens=self.free_tokens,
            row_us=self.pass_row_us,
            looks_up=self.looks_up,
            max_num_seqs=self.concurrency,
            max_num_batched_tokens=128 * self.concurrency,
        )


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code: 1 if a text came out wrong."""
    return run_command(WindowsSettings, arguments, measure, describe)


def _generate_pairs(tokenizer: Tokenizer, count: int) -> Iterator[Pair]:
    """Generates texts with a function renamed, one left out, one moved and one put in."""
    for number in range(count):
        before = functions(NUM_FUNCTIONS, number)
        name = before[number % NUM_FUNCTIONS].split("(")[0].removeprefix("def ")
        after = [text.replace(name, f"{name}_again") for text in before]
        del after[(5 * number + 3) % len(after)]
        after.insert(number % len(after), after.pop())
        after.insert((7 * number) % len(after), functions(1, NUM_TEXTS + number)[0])
        yield make_pair(tokenizer, "\n\n".join(before), "\n\n".join(after), ratio=0.0)


def measure(settings: WindowsSettings) -> dict[str, Any]:
    """Runs all requests and returns the report."""
    tokenizer = load_tokenizer(settings.tokenizer)
    if settings.pairs:
        pairs = load_pairs(settings.pairs, tokenizer, 0)
    else:
        pairs = list(_generate_pairs(tokenizer, min(NUM_TEXTS, settings.requests)))
    # A prompt of a token, by which proposers see no other request's text.
    numbered = [replace(pair, prompt=array("i", [n])) for n, pair in enumerate(pairs)]
    return run_virtually(settings, numbered, tokenizer)


def describe(report: dict[str, Any]) -> str:
    """Returns the report as a table."""
    names = (
        *("tokens_per_second", "tokens_per_pass", "steps", "steps_waited_share"),
        *("steps_idle_share", "waits_in_vain_share", "proposer_us_per_window"),
    )
    waits = report["wait_ms"]
    return format_table(
        (*names, "p50 ms", "p99 ms", "right"),
        [(*(report[name] for name in names), waits["p50"], waits["p99"], report["all_right"])],
    )


class _Load(Load):
    """Sends a new request for each that has ended."""

    def __init__(
        self,
        timeline: Timeline,
        cores: Cores,
        settings: WindowsSettings,
        pairs: Sequence[Pair],
        stack: Stack,
    ) -> None:
        super().__init__(timeline, cores, settings, pairs, stack)
        self._settings = settings
        self._num_passes = self._num_accepted = self._num_rejected = 0
        self._full: dict[str, Any] = {}
        """Figures when the first request ended that no other one followed."""
        self._report: dict[str, Any] = {}

    def begin(self) -> None:
        """Sends the first requests."""
        for _ in range(min(self._settings.concurrency, self._settings.requests)):
            self.add()

    def take_end(self, ended: Ended) -> None:
        """See `Load.take_end`."""
        self._num_passes += ended.finished.num_passes
        self._num_accepted += ended.finished.accepted_prediction_tokens
        self._num_rejected += ended.finished.rejected_prediction_tokens
        if self.num_begun < self._settings.requests:
            self.add()
        elif not self._full:
            self._full = self._measure()

    def take_step(self, outputs: StepOutputs) -> None:
        """See `Load.take_step`."""
        if not self.live:
            self._report = self._make_report()

    def _measure(self) -> dict[str, Any]:
        """Returns what speed, waits and costs are so far."""
        engine, seconds = self.stack.engine, self.time / 1e6
        waits = engine.waits
        steps = max(engine.num_plans, 1)
        proposing_us = sum(proposer.busy_us for proposer in self.stack.proposers)
        return {
            "seconds": round(seconds, 3),
            "tokens_per_second": round(self.num_tokens / max(seconds, 1e-9), 1),
            "tokens_per_pass": round(self.num_tokens / max(self.num_rows, 1), 4),
            "steps": engine.num_plans,
            "steps_waited_share": round(waits.num_waits / steps, 4),
            "steps_idle_share": round(waits.num_idle / steps, 4),
            "waits_in_vain_share": round(waits.num_late / max(waits.num_waits, 1), 4),
            "windows": engine.num_windows,
            "proposer_us_per_window": round(proposing_us / max(engine.num_windows, 1), 2),
            "scheduler_us_per_row": round(engine.busy_us / max(self.num_rows, 1), 2),
        }

    def _make_report(self) -> dict[str, Any]:
        settings, waits = self._settings, self.stack.engine.waits
        return {
            "algorithm": settings.algorithm,
            "concurrency": settings.concurrency,
            "requests": settings.requests,
            "replicas": settings.replicas,
            "cores": settings.cores,
            "pass_ms": settings.pass_ms,
            "token_us": settings.token_us,
            "depth": settings.depth,
            "wait": settings.wait,
            "all_right": self.all_right,
            "output_tokens": self.num_tokens,
            "passes": self._num_passes,
            **self._measure(),
            "full": self._full,
            "accepted_prediction_tokens": self._num_accepted,
            "rejected_prediction_tokens": self._num_rejected,
            "steps_waited": waits.num_waits,
            "wait_time_share": round(1e6 * waits.seconds / self.time, 5),
        }

    def report(self) -> dict[str, Any]:
        """Returns the report on all requests."""
        waits, seconds = self.stack.engine.waits, self.stack.engine.wait_seconds
        p50, p99 = np.quantile(seconds or [0.0], [0.5, 0.99]).tolist()
        wait_ms = {"p50": p50, "p99": p99, "mean": waits.seconds / max(waits.num_waits, 1)}
        return self._report | {
            "wait_ms": {name: round(1000 * each, 3) for name, each in wait_ms.items()}
        }


def run_virtually(
    settings: WindowsSettings, pairs: Sequence[Pair], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Runs all requests in virtual time; returns the report."""
    timeline, cores = Timeline(), Cores(settings.cores)
    simulated = settings.simulated()
    stack = Stack(
        timeline,
        cores,
        settings,
        SchedulerSettings(max_plans_in_flight=settings.depth, max_num_waiting=settings.concurrency),
        describe_model(make_model(simulated), simulated),
        pairs,
        partial(find_step_us, simulated),
        load_vocabulary(tokenizer),
        settings.algorithm,
        settings.replicas,
    )
    load = _Load(timeline, cores, settings, pairs, stack)
    load.ask(load.begin)
    timeline.run()
    return load.report()
