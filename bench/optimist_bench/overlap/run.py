"""One run of the scheduler's engine against a simulated worker, under a steady load."""

import asyncio
import random
import time
from dataclasses import dataclass
from operator import add, sub
from typing import NamedTuple

import numpy as np

from optimist.scheduler.v1 import scheduler_pb2
from optimist_bench.harness.services import read_metrics
from optimist_bench.harness.simulated_worker import SimulatedModel
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.drafts import TokenTree
from optimist_common.scheduler_service.stream import GatewayStream
from optimist_scheduler.core.windows.window import Window
from optimist_scheduler.engine.fleet import Fleet
from optimist_scheduler.settings import SchedulerSettings

NUM_REQUESTS = 32
PROMPT_TOKENS = 32
MAX_TOKENS = 60_000
PREDICTION = SimulatedModel().expected(PROMPT_TOKENS + np.arange(50_000)).astype(np.int32)
WINDOW_TOKENS = 256
DRAFT_TOKENS = 4
WARM_UP_STEPS = 60
STALL_EVERY = 50
STALL_US = 5000
COMMAND_EVERY = 3
TIMEOUT_SECONDS = 60.0
"""A run that has not got as far by then never will."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is run."""

    step_us: int
    depth: int
    optimistic: bool = True
    stalls: str = "none"
    """Who stalls for 5 ms at every 50th step: none, worker or scheduler."""
    windows: str = "none"
    """How requests get 4 right drafts a step: none; seldom, a window of 256 tokens when half of the
    last one is used, as a proposer does; or each step, such a window each time."""
    commands: bool = False
    """Whether a command comes at every third step."""

    @property
    def name(self) -> str:
        """Names the configuration in reports."""
        words = [f"{self.step_us / 1000:g} ms", f"depth {self.depth}"]
        words.append("on" if self.optimistic else "off")
        if self.stalls != "none":
            words.append(f"{self.stalls} stalls")
        if self.windows != "none":
            words.append(f"windows {self.windows}")
        words += ["commands"] * self.commands
        return ", ".join(words)


class Figures(NamedTuple):
    """What was counted during a part of a run."""

    seconds: float
    idle_seconds: float
    """Time for which the worker had nothing to run."""
    num_steps: int
    num_plans: int
    num_hits: int
    """Plans that had been decided ahead of a result and were sent as they were."""
    num_prescheduled_rows: int
    num_recomputed_rows: int
    """Of these rows, those that a repair dropped or computed again, and rows that it added."""

    def less(self, earlier: "Figures") -> "Figures":
        """Returns what was counted since."""
        return Figures(*map(sub, self, earlier))

    def plus(self, other: "Figures") -> "Figures":
        """Returns the figures of both."""
        return Figures(*map(add, self, other))


class Run:
    """An engine with requests that do not end, and what disturbs it."""

    def __init__(self, configuration: Configuration, worker: str, metrics_port: int) -> None:
        """Prepares a run that is not begun.

        Args:
            configuration: What to run.
            worker: host:port of the simulated worker.
            metrics_port: Of its metrics.
        """
        self._configuration, self._metrics_port = configuration, metrics_port
        self._fleet = Fleet(
            SchedulerSettings(
                workers=[worker],
                proposers=[],
                max_plans_in_flight=configuration.depth,
                enable_optimistic_scheduling=configuration.optimistic,
                # Only then does a changed priority change anything.
                policy="priority" if configuration.commands else "fcfs",
                num_speculative_tokens=0 if configuration.windows == "none" else DRAFT_TOKENS,
            )
        )
        self._random = random.Random(0)  # noqa: S311
        self._num_responses = 0
        self._num_commands = 0
        self._num_output: dict[int, int] = {}
        """Tokens by handle."""
        self._bases: dict[int, int] = {}
        """Where the last window of each request begins."""
        self._stepped = asyncio.Event()

    async def measure(self, seconds: float) -> Figures:
        """Runs for a while after a warm-up; returns what was counted then."""
        fleet = self._fleet
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(fleet.run())
            await fleet.until_reached()
            stream = fleet.open()
            reading = tasks.create_task(self._read(stream))
            for handle in range(NUM_REQUESTS):
                self._add(stream, handle, MAX_TOKENS)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while self._num_responses < WARM_UP_STEPS:
                    self._stepped.clear()
                    await self._stepped.wait()
            before = await self._count()
            await asyncio.sleep(seconds)
            figures = (await self._count()).less(before)
            fleet.close(stream)
            running.cancel()
            reading.cancel()
        return figures

    async def _count(self) -> Figures:
        of_worker = await asyncio.to_thread(read_metrics, self._metrics_port)
        stats = self._fleet.dispatcher.schedulers[0].stats
        return Figures(
            seconds=time.perf_counter(),
            idle_seconds=of_worker["optimist_simulated_idle_seconds_total"],
            num_steps=stats.num_results,
            num_plans=stats.num_plans,
            num_hits=stats.num_preschedule_hits,
            num_prescheduled_rows=stats.num_prescheduled_rows,
            num_recomputed_rows=(
                stats.num_dropped_rows + stats.num_recomputed_rows + stats.num_added_rows
            ),
        )

    async def _read(self, stream: GatewayStream) -> None:
        """Reads what requests are sent; disturbs the engine at some time of some steps."""
        loop = asyncio.get_running_loop()
        async for response in stream.responses():
            if not response.handles:
                continue
            self._num_responses += 1
            self._stepped.set()
            if self._configuration.windows != "none":
                self._propose(response)
            delay = self._random.random() * self._configuration.step_us / 1e6
            if self._configuration.stalls == "scheduler" and self._num_responses % STALL_EVERY == 0:
                loop.call_later(delay, time.sleep, STALL_US / 1e6)
            if self._configuration.commands and self._num_responses % COMMAND_EVERY == 0:
                loop.call_later(delay, self._command, stream)

    def _command(self, stream: GatewayStream) -> None:
        """Adds a request, aborts it, changes a priority, asks for figures, in turn."""
        number, turn = divmod(self._num_commands, 4)
        handle = NUM_REQUESTS + number
        self._num_commands += 1
        if turn == 0:
            self._add(stream, handle, MAX_TOKENS)
            return
        request = scheduler_pb2.ConnectRequest()
        if turn == 1:
            request.abort.handle = handle
        elif turn == 2:
            request.set_priority.handle = number % NUM_REQUESTS
            request.set_priority.priority = number
        else:
            request.get_stats.SetInParent()
        self._fleet.carry_out(stream, request)

    def _add(self, stream: GatewayStream, handle: int, max_tokens: int) -> None:
        request = scheduler_pb2.ConnectRequest()
        add = request.add
        add.handle, add.request_id = handle, f"request-{handle}"
        add.prompt_token_ids = to_bytes(range(PROMPT_TOKENS))
        add.max_tokens = max_tokens
        predicted = [] if self._configuration.windows == "none" else PREDICTION.tolist()
        add.predicted_token_ids = to_bytes(predicted)
        self._fleet.carry_out(stream, request)
        if predicted:
            self._set_window(handle, 0)

    def _propose(self, response: scheduler_pb2.ConnectResponse) -> None:
        """Answers a step's outputs with the next window of each request."""
        counts = from_bytes(response.num_tokens).tolist()
        for handle, count in zip(from_bytes(response.handles).tolist(), counts, strict=True):
            self._num_output[handle] = base = self._num_output.get(handle, 0) + count
            is_short = base > self._bases.get(handle, 0) + WINDOW_TOKENS // 2
            if is_short or self._configuration.windows == "each step":
                self._set_window(handle, base)

    def _set_window(self, handle: int, base: int) -> None:
        self._bases[handle] = base
        token_ids = PREDICTION[base : base + WINDOW_TOKENS]
        positions = np.arange(base, base + len(token_ids), dtype=np.int32)
        window = Window(base, TokenTree(token_ids), positions, np.empty(0, np.float32))
        self._fleet.dispatcher.set_windows([(f"request-{handle}", window)])
