"""What passes take: by their tokens, by the keys that these attend to, and by the drafter."""

from collections.abc import Sequence
from typing import NamedTuple

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.base.values import Int32Array


class Timings(NamedTuple):
    """What a worker has timed at its start, as far as it has."""

    num_tokens: Sequence[int] = ()
    """Tokens of passes, ascending [num_passes]."""
    pass_us: Sequence[int] = ()
    """How long these took, in microseconds [num_passes]."""
    drafter_us: Sequence[int] = ()
    """Microseconds of the drafter for one row, by the depth of its drafts from 1 on."""
    row_key_ns: float = 0.0
    """What each key in memory of a row adds to a pass, in nanoseconds; 0 if it is not known."""
    token_key_ns: float = 0.0
    """The same of each key and each token of the row after its first."""


NO_TIMINGS = Timings()


class PassCosts:
    """What passes are expected to take, learnt from the passes themselves."""

    def __init__(self, timings: Timings) -> None:
        """Begins with what was timed; raises ValueError if that cannot be."""
        self._plain = CostCurve(timings.num_tokens, timings.pass_us)
        """Of passes without what keys in memory add."""
        self.drafter = CostCurve(range(1, len(timings.drafter_us) + 1), timings.drafter_us)
        """Time of the drafter by the largest level of a pass, however many rows it drafts for."""
        self._is_timed = len(timings.num_tokens) > 0
        self.counts_keys = timings.row_key_ns > 0 or timings.token_key_ns > 0
        """Whether passes take longer the longer their rows are."""
        self._row_key_ns, self.token_key_ns = timings.row_key_ns, timings.token_key_ns

    def of_rows(self, lengths: Int32Array) -> CostCurve:
        """Returns what passes of rows of some lengths take, their drafts shared out evenly."""
        if not self.counts_keys or not len(lengths):
            return self._plain
        further = self.token_key_ns * float(lengths.mean())
        rows_ns = self._row_key_ns * float(lengths.sum())
        return self._plain.with_line(rows_ns - further * len(lengths), further)

    def learn(
        self, num_computed: Int32Array, num_tokens: Int32Array, total: int, pass_ns: int
    ) -> None:
        """Learns what a pass took.

        A worker that has timed nothing has passes that cost the same: what a few of them teach of
        larger ones may be a stall, and what is thought too dear is not seen again.

        Args:
            num_computed: Keys of its rows after it [num_rows].
            num_tokens: Their tokens in it, which see half of each other in the mean [num_rows].
            total: Tokens that it was fed.
            pass_ns: How long it took.
        """
        if self.counts_keys:
            lengths = (num_computed - num_tokens / 2).clip(0)
            key_ns = self._row_key_ns + self.token_key_ns * (num_tokens - 1)
            # Whatever was timed at start, the rest of the pass takes some time.
            pass_ns -= min(round(float((lengths * key_ns).sum())), pass_ns * 15 // 16)
        self._plain.observe(total if self._is_timed else min(total, 1), pass_ns)
