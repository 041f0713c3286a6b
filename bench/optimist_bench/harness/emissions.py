"""When a simulated worker sent what: the clock that all later arrivals are held against."""

import json
from pathlib import Path

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes


class Emissions:
    """Takes note of results as they are sent; requests are told apart by their seeds."""

    def __init__(self) -> None:
        self._seeds: dict[int, int] = {}
        self._lines: list[tuple[int, list[int], list[int]]] = []

    def note(
        self,
        plan: worker_pb2.ExecuteRequest | None,
        response: worker_pb2.ExecuteResponse,
        now_ns: int,
    ) -> None:
        """Takes note of a result, and of the plan that it is the first one of."""
        for admission in plan.admissions if plan is not None else ():
            self._seeds[admission.slot] = admission.sampling.seed
        seeds = [self._seeds[slot] for slot in from_bytes(response.slots).tolist()]
        self._lines.append((now_ns, seeds, from_bytes(response.num_emitted_tokens).tolist()))

    def write(self, path: Path) -> None:
        """Writes a JSON line for each result: when, seeds of its rows, tokens of its rows."""
        path.write_text("".join(json.dumps(line) + "\n" for line in self._lines), encoding="utf-8")


def read_emissions(path: Path) -> dict[int, list[int]]:
    """Returns when each token of each request was sent, by seed, in `perf_counter_ns`."""
    times: dict[int, list[int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        now_ns, seeds, counts = json.loads(line)
        for seed, count in zip(seeds, counts, strict=True):
            times.setdefault(seed, []).extend([now_ns] * count)
    return times
