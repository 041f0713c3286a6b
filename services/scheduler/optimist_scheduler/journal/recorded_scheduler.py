"""A scheduler whose calls are logged."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from optimist_scheduler.core.outlook import Outlook
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.table import Request
from optimist_scheduler.core.requests.validate import NewRequest
from optimist_scheduler.core.scheduler import PauseMode, Scheduler
from optimist_scheduler.core.values.output import Ended, Finished, StepOutputs
from optimist_scheduler.core.values.stats import SchedulerStats
from optimist_scheduler.core.windows.window import Window
from optimist_scheduler.journal.journal import Journal
from optimist_scheduler.journal.journal_line import (
    FORMAT,
    Json,
    write_error,
    write_request,
    write_result,
    write_value,
    write_window,
    write_worker,
)
from optimist_scheduler.journal.journal_request import write_moved

T = TypeVar("T")


class RecordedScheduler:
    """A `Scheduler` with the same methods, of which those that may change it are logged.

    A line has the call, its arguments and what came of it. Reads change nothing and are not in it.
    """

    def __init__(
        self,
        config: EngineConfig,
        costs: Sequence[tuple[int, int]],
        drafter_us: Sequence[int],
        journal: Journal,
    ) -> None:
        """Sets up a scheduler and begins its log.

        Args:
            config: As for `Scheduler`.
            costs: As for `Scheduler`.
            drafter_us: As for `Scheduler`.
            journal: Where to log.
        """
        self._core = Scheduler(config, costs, drafter_us)
        self._journal = journal
        journal.write({"format": FORMAT, **write_worker(config, costs, drafter_us)})

    @property
    def config(self) -> EngineConfig:
        """As of `Scheduler`."""
        return self._core.config

    @property
    def stats(self) -> SchedulerStats:
        """As of `Scheduler`."""
        return self._core.stats

    @property
    def num_running(self) -> int:
        """As of `Scheduler`."""
        return self._core.num_running

    @property
    def num_waiting(self) -> int:
        """As of `Scheduler`."""
        return self._core.num_waiting

    @property
    def num_free_blocks(self) -> int:
        """As of `Scheduler`."""
        return self._core.num_free_blocks

    @property
    def num_plans_in_flight(self) -> int:
        """As of `Scheduler`."""
        return self._core.num_plans_in_flight

    @property
    def can_send(self) -> bool:
        """As of `Scheduler`."""
        return self._core.can_send

    @property
    def is_paused(self) -> bool:
        """As of `Scheduler`."""
        return self._core.is_paused

    @property
    def is_quiet(self) -> bool:
        """As of `Scheduler`."""
        return self._core.is_quiet

    def find_unaligned(self) -> list[str]:
        """As of `Scheduler`."""
        return self._core.find_unaligned()

    def count_followed(self) -> tuple[int, int]:
        """As of `Scheduler`."""
        return self._core.count_followed()

    def predict(self) -> list[Outlook]:
        """As of `Scheduler`."""
        return self._core.predict()

    def has(self, request_id: str) -> bool:
        """As of `Scheduler`."""
        return self._core.has(request_id)

    def add(self, new: NewRequest, now: float, arrival: int | None = None) -> None:
        """As of `Scheduler`."""
        self._record(
            "add",
            lambda: self._core.add(new, now, arrival),
            lambda: {"new": write_request(new), "now": now, "arrival": arrival},
        )

    def abort(self, request_id: str) -> Finished | None:
        """As of `Scheduler`."""
        return self._record(
            "abort", lambda: self._core.abort(request_id), lambda: {"request_id": request_id}
        )

    def set_priority(self, request_id: str, priority: int) -> bool:
        """As of `Scheduler`."""
        return self._record(
            "set_priority",
            lambda: self._core.set_priority(request_id, priority),
            lambda: {"request_id": request_id, "priority": priority},
        )

    def set_window(self, request_id: str, window: Window) -> bool:
        """As of `Scheduler`."""
        return self._record(
            "set_window",
            lambda: self._core.set_window(request_id, window),
            lambda: {"request_id": request_id, "window": write_window(window)},
        )

    def pause(self, mode: PauseMode) -> list[Ended]:
        """As of `Scheduler`."""
        return self._record("pause", lambda: self._core.pause(mode), lambda: {"mode": mode.value})

    def resume(self) -> None:
        """As of `Scheduler`."""
        self._record("resume", self._core.resume, dict)

    def prepare(self) -> None:
        """As of `Scheduler`."""
        self._record("prepare", self._core.prepare, dict)

    def schedule(self, now: float) -> Plan | None:
        """As of `Scheduler`."""
        return self._record("schedule", lambda: self._core.schedule(now), lambda: {"now": now})

    def settle(self, result: StepResult) -> StepOutputs:
        """As of `Scheduler`."""
        return self._record(
            "settle", lambda: self._core.settle(result), lambda: {"result": write_result(result)}
        )

    def restart(
        self,
        config: EngineConfig,
        costs: Sequence[tuple[int, int]] = (),
        drafter_us: Sequence[int] = (),
    ) -> list[Ended]:
        """As of `Scheduler`."""
        return self._record(
            "restart",
            lambda: self._core.restart(config, costs, drafter_us),
            lambda: write_worker(config, costs, drafter_us),
        )

    def evacuate(self) -> list[Request]:
        """As of `Scheduler`."""
        return self._record("evacuate", self._core.evacuate, dict)

    def adopt(self, request: Request) -> Ended | None:
        """As of `Scheduler`."""
        # Adopted, it is another.
        moved = write_moved(request)
        return self._record("adopt", lambda: self._core.adopt(request), lambda: {"moved": moved})

    def close(self) -> None:
        """Ends the log with the totals; the scheduler itself can still be used."""
        self._journal.write({"call": "close", **write_value(self.stats)})
        self._journal.close()

    def _record(self, call: str, run: Callable[[], T], arguments: Callable[[], Json]) -> T:
        """Makes a call and logs it, also when it raises."""
        if not self._journal.is_open:
            return run()
        try:
            value = run()
        except Exception as error:
            self._journal.write({"call": call, **arguments(), **write_error(error)}, flush=True)
            raise
        line = {"call": call, **arguments(), **write_value(value)}
        self._journal.write(line, flush=isinstance(value, Plan))
        return value


AnyScheduler = Scheduler | RecordedScheduler
"""A scheduler, logged or not."""
