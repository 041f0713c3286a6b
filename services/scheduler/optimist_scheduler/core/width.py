"""How many drafts each row may have: one object that learns from results and chooses widths."""

from typing import Literal, get_args

import numpy as np

from optimist_scheduler.core.acceptance import Acceptance
from optimist_scheduler.core.adaptive import START_WIDTH, AdaptiveWidths
from optimist_scheduler.core.arrays import BoolArray, Float32Array, Int32Array
from optimist_scheduler.core.cost import CostCurve
from optimist_scheduler.core.crossover import choose_crossover
from optimist_scheduler.core.goodput import choose_goodput

DraftWidthPolicy = Literal["goodput", "adaptive", "crossover", "fixed"]

PROBE_PERIOD = 64
"""A row whose drafts are off gets one with every so many choices."""


class DraftWidths:
    """What is known of the rows' drafts, by slot, and the policy that makes widths of it.

    - fixed: each request's own limit.
    - goodput: most expected tokens per time of the pass (`goodput.py`).
    - adaptive: one up or down by the accepted share (`adaptive.py`).
    - crossover: the limit where that is faster than no drafts, else 0 (`crossover.py`).
    """

    def __init__(self, policy: DraftWidthPolicy, max_num_seqs: int) -> None:
        """Starts with empty slots; raises ValueError if there is no such policy."""
        if policy not in get_args(DraftWidthPolicy):
            raise ValueError(f"draft_width must be one of {get_args(DraftWidthPolicy)}: {policy!r}")
        self._policy = policy
        self._limits = np.zeros(max_num_seqs, np.int32)
        self._acceptance = Acceptance(max_num_seqs)
        self._adaptive = AdaptiveWidths(max_num_seqs)

    def admit(self, slot: int, limit: int) -> int:
        """Starts a request that may have up to `limit` drafts a pass; 0 turns them off for it.

        Returns:
            The width to begin with.
        """
        self._limits[slot] = limit
        self._acceptance.reset(slot)
        self._adaptive.reset(slot, limit)
        return self.first(limit)

    def first(self, limit: int) -> int:
        """Returns the width that a request with this limit begins with; changes nothing."""
        return min(START_WIDTH, limit) if self._policy == "adaptive" else limit

    def observe(self, slots: Int32Array, drafted: Int32Array, accepted: Int32Array) -> None:
        """Learns from the rows of a settled step.

        A row that had a window but no drafts counts too: its emitted tokens are compared with the
        window as if that had been drafted.

        Args:
            slots: Each at most once [num_rows].
            drafted: Drafts that were verified; a row with 0 is left as it is [num_rows].
            accepted: How many of them were accepted, at most `drafted` [num_rows].
        """
        self._acceptance.observe(slots, accepted, np.minimum(accepted + 1, drafted))
        if self._policy == "adaptive":
            self._adaptive.observe(slots, drafted, accepted)

    def rate(self, slots: Int32Array) -> Float32Array:
        """Returns the chance that a draft is accepted if those before it were [num_rows]."""
        return self._acceptance.rate(slots)

    def choose(
        self,
        slots: Int32Array,
        drafting: BoolArray,
        base_tokens: int,
        curve: CostCurve,
        choice: int,
    ) -> Int32Array:
        """Returns the most drafts per row, 0 to the request's limit; changes nothing.

        Args:
            slots: The rows that emit a token in a pass [num_rows].
            drafting: Whether a row has something to draft from. One that has not costs nothing;
                its width is for when it has, judged by what is known of it [num_rows].
            base_tokens: Tokens of the pass without drafts.
            curve: Time of a pass by its tokens.
            choice: Number of the choice, counted up by the caller; decides whose turn it is to be
                probed.
        """
        if self._policy not in ("goodput", "crossover"):
            return self._start(slots)
        choose = choose_goodput if self._policy == "goodput" else choose_crossover
        limits = self._limits[slots]
        widths = choose(self._acceptance.rate(slots), limits, drafting, base_tokens, curve)
        is_probed = (slots + choice) % PROBE_PERIOD == 0
        probed: Int32Array = np.maximum(widths, np.minimum(limits, is_probed))
        return probed

    def _start(self, slots: Int32Array) -> Int32Array:
        """Returns widths that take no costs into account [num_rows]."""
        return self._adaptive.choose(slots) if self._policy == "adaptive" else self._limits[slots]
