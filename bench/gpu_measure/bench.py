"""What is to be measured, for how long, and what has been."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gpu_measure.shape import LARGE, SMALL, TINY_LARGE, TINY_SMALL, Ceilings, Shape
from gpu_measure.slots import Loaded


@dataclass
class Row:
    """One line of the table."""

    section: str
    what: str
    measured: float
    unit: str
    floor: float | None = None
    """The best that the hardware allows, in the same unit."""
    noise: float | None = None
    """Difference of two repetitions, of their mean."""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured, of the floor."""
        return self.measured / self.floor if self.floor else None


@dataclass
class Bench:
    """What is to be measured, and what was."""

    device: torch.device
    dtype: torch.dtype
    is_tiny: bool
    directory: Path
    deadline: float
    section: str = ""
    section_end: float = 0.0
    ceilings: Ceilings = field(default_factory=Ceilings)
    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    loaded: dict[str, Loaded] = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        """Whether there is a GPU."""
        return self.device.type == "cuda"

    @property
    def left(self) -> float:
        """Seconds that the section has left."""
        return min(self.section_end, self.deadline) - time.monotonic()

    @property
    def shapes(self) -> tuple[Shape, Shape]:
        """The small shape and the large one."""
        return (TINY_SMALL, TINY_LARGE) if self.is_tiny else (SMALL, LARGE)

    def add(self, what: str, measured: float, unit: str, **values: Any) -> Row:
        """Adds a row and prints it."""
        row = Row(self.section, what, measured, unit, **values)
        self.rows.append(row)
        say(f"  {format_cells(row)}")
        return row

    def leave_out(self, what: str, why: str) -> None:
        """Notes what was not measured."""
        self.skipped[f"{self.section}: {what}"] = why
        say(f"  left out: {what}: {why}")

    def fail(self, what: str, why: str) -> None:
        """Notes what went wrong."""
        self.errors[f"{self.section}: {what}"] = why
        say(f"  failed: {what}: {why}")

    def wait(self) -> None:
        """Waits for the device."""
        if self.is_cuda:
            torch.cuda.synchronize()

    def seconds(self, function: Callable[[], Any], repetitions: int = 1) -> float:
        """Returns the least seconds of a call, the device's work included."""
        best = float("inf")
        for _ in range(repetitions):
            self.wait()
            start = time.perf_counter()
            function()
            self.wait()
            best = min(best, time.perf_counter() - start)
        return best


def say(text: str) -> None:
    """Prints at once."""
    print(text, flush=True)


def event() -> Any:
    """Returns an event that takes the time."""
    make: Any = torch.cuda.Event
    return make(enable_timing=True)


def format_cells(row: Row) -> str:
    """Returns a row as a line of the table."""
    floor = "" if row.floor is None else f"{row.floor:.3f}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    noise = "" if row.noise is None else f"{row.noise:.1%}"
    cells = f"{row.what:<62} {row.measured:>11.3f} {row.unit:<9} {floor:>9} {ratio:>6} {noise:>6}"
    return f"{cells}  {row.note}".rstrip()
