"""The requests of a run, one after the other, and what came of them."""

from collections.abc import Sequence
from dataclasses import replace

from optimist.scheduler.v1 import scheduler_pb2
from optimist_bench.harness.pair import Pair
from optimist_bench.windows.report import Costs, Progress, Totals


class Requests:
    """Pairs in turn as requests with handles from 1 on; the first token of a prompt is the pair's
    number."""

    def __init__(self, pairs: Sequence[Pair], number: int) -> None:
        """Takes the pairs, and how many requests there are in all."""
        self._pairs, self._num_left = pairs, number
        self._num_begun = 0
        self._texts: dict[int, list[int]] = {}
        """Output so far, by handle, of the requests that run."""
        self.totals = Totals()

    @property
    def are_left(self) -> bool:
        """Whether a request has not begun."""
        return self._num_left > 0

    @property
    def run(self) -> bool:
        """Whether a request has begun and not ended."""
        return bool(self._texts)

    def begin(self) -> tuple[int, int, Pair]:
        """Begins the next request; returns its handle, its pair's number and the pair."""
        self._num_left -= 1
        self._num_begun += 1
        self._texts[self._num_begun] = []
        number = (self._num_begun - 1) % len(self._pairs)
        return self._num_begun, number, self._pairs[number]

    def take(self, handles: Sequence[int], counts: Sequence[int], token_ids: Sequence[int]) -> None:
        """Takes new tokens: those of each handle are as many as its count, one after the other."""
        progress, start = self.totals.progress, 0
        progress.num_tokens += len(token_ids)
        progress.num_rows += len(handles)
        for handle, count in zip(handles, counts, strict=True):
            self._texts[handle] += token_ids[start : start + count]
            start += count

    def end(self, handle: int, finished: scheduler_pb2.Finished) -> None:
        """Ends a request."""
        truth = self._pairs[(handle - 1) % len(self._pairs)].truth
        self.totals.take(self._texts.pop(handle), truth, finished)

    def measure(self, seconds: float, stats: scheduler_pb2.Stats, costs: Costs) -> Progress:
        """Returns what has come out, in so many seconds and by the scheduler's figures."""
        return replace(self.totals.progress, seconds=seconds, stats=stats, costs=costs)
