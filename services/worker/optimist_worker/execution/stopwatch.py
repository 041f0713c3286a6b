"""Takes the time of parts of a step, on the CPU or on the device."""

import time

import torch


class HostStopwatch:
    """For devices that compute while the host waits."""

    def __init__(self) -> None:
        self._total_ns = self._start_ns = 0

    def start(self) -> None:
        """A part begins."""
        self._start_ns = time.perf_counter_ns()

    def stop(self) -> None:
        """A part ends."""
        self._total_ns += time.perf_counter_ns() - self._start_ns

    def total_ns(self) -> int:
        """Returns the time of all parts, in nanoseconds."""
        return self._total_ns


class CudaStopwatch:
    """For a CUDA stream; the times are there once the stream has come so far."""

    def __init__(self, *, is_on: bool) -> None:
        """Starts a watch; one that is not on takes no time, for graphs, which have no events."""
        self._is_on = is_on
        self._parts: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        """A part begins."""
        if not self._is_on:
            return
        events = _timed_event(), _timed_event()
        self._parts.append(events)
        events[0].record()

    def stop(self) -> None:
        """A part ends."""
        if self._is_on:
            self._parts[-1][1].record()

    def total_ns(self) -> int:
        """Returns the time of all parts, in nanoseconds."""
        return sum(int(first.elapsed_time(last) * 1e6) for first, last in self._parts)


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
