"""How many drafts each row may have: one object that learns from results and chooses widths."""

import math
from typing import Literal, NamedTuple, get_args

import numpy as np

from optimist_scheduler.core.acceptance import DRAFTER_PRIOR, WINDOW_PRIOR, Acceptance
from optimist_scheduler.core.adaptive import START_WIDTH, AdaptiveWidths
from optimist_scheduler.core.arrays import BoolArray, Float32Array, Int32Array
from optimist_scheduler.core.cost import CostCurve
from optimist_scheduler.core.crossover import choose_crossover
from optimist_scheduler.core.drafter import Drafter, DrafterRows
from optimist_scheduler.core.goodput import choose_goodput

DraftWidthPolicy = Literal["goodput", "adaptive", "crossover", "fixed"]

PROBE_PERIOD = 64
"""A row whose drafts are off gets one with every so many choices."""
PROBE_SHARE = 8
"""Of the rows for which the drafter is off, one in so many is probed at a time."""
PROBE_LOSS = 0.01
"""Share of the time that probes of the drafter may take."""


class Widths(NamedTuple):
    """Most drafts of the next passes [num_rows]."""

    windows: Int32Array
    """From the window."""
    drafter: Int32Array
    """From the worker's drafter, all branches of a tree together."""


class DraftWidths:
    """What is known of the rows' drafts, by slot, and the policy that makes widths of it.

    - fixed: each request's own limit.
    - goodput: most expected tokens per time of the pass (`goodput.py`).
    - adaptive: one up or down by the accepted share (`adaptive.py`).
    - crossover: the limit where that is faster than no drafts, else 0 (`crossover.py`).

    Windows and the drafter are learned apart. Of the drafter, widths are levels: of a tree, one
    node of a level at most is accepted.
    """

    def __init__(
        self, policy: DraftWidthPolicy, max_num_seqs: int, drafter: Drafter | None = None
    ) -> None:
        """Starts with empty slots; raises ValueError if there is no such policy."""
        if policy not in get_args(DraftWidthPolicy):
            raise ValueError(f"draft_width must be one of {get_args(DraftWidthPolicy)}: {policy!r}")
        self._policy = policy
        self._drafter = drafter
        self._limits = np.zeros(max_num_seqs, np.int32)
        self._acceptance = Acceptance(max_num_seqs, WINDOW_PRIOR)
        self._adaptive = AdaptiveWidths(max_num_seqs)
        self._level_limits = np.zeros(max_num_seqs, np.int32)
        self._level_acceptance = Acceptance(max_num_seqs, DRAFTER_PRIOR, is_common=True)
        self._adaptive_levels = AdaptiveWidths(max_num_seqs)
        self._first_levels = (
            START_WIDTH if policy == "adaptive" else drafter.max_depth if drafter else 0
        )

    def admit(self, slot: int, limit: int) -> tuple[int, int]:
        """Starts a request that may have up to `limit` drafts a pass; 0 turns them off for it.

        Returns:
            What it may draft to begin with, from its window and from the drafter.
        """
        self._limits[slot] = limit
        self._acceptance.reset(slot)
        self._adaptive.reset(slot, limit)
        if self._drafter is not None:
            self._level_limits[slot] = most = self._most_levels(limit)
            self._level_acceptance.reset(slot)
            self._adaptive_levels.reset(slot, most)
        return self.first(limit), self.first_of_drafter(limit)

    def first(self, limit: int) -> int:
        """Returns the width that a request with this limit begins with; changes nothing."""
        return min(START_WIDTH, limit) if self._policy == "adaptive" else limit

    def first_of_drafter(self, limit: int) -> int:
        """Returns how much of the drafter such a request begins with; changes nothing."""
        if self._drafter is None:
            return 0
        levels = min(self._first_levels, self._most_levels(limit))
        return min(limit, int(self._drafter.count_tokens(levels)))

    def observe(self, slots: Int32Array, drafted: Int32Array, accepted: Int32Array) -> None:
        """Learns from the windows of the rows of a settled step.

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

    def observe_drafter(self, slots: Int32Array, drafted: Int32Array, accepted: Int32Array) -> None:
        """Learns from the rows of a settled step that the drafter drafted for; see `observe`.

        What of a tree was accepted and the level behind it were examined.
        """
        if self._drafter is None:
            return
        levels = np.maximum(self._drafter.count_levels(drafted), accepted)
        self._level_acceptance.observe(slots, accepted, np.minimum(accepted + 1, levels))
        if self._policy == "adaptive":
            self._adaptive_levels.observe(slots, levels, accepted)

    def rate(self, slots: Int32Array) -> Float32Array:
        """Returns the chance that a draft is accepted if those before it were [num_rows]."""
        return self._acceptance.rate(slots)

    def rate_of_drafter(self, slots: Int32Array) -> Float32Array:
        """Returns the same for levels of the drafter [num_rows]."""
        return self._level_acceptance.rate(slots)

    def choose(
        self,
        slots: Int32Array,
        drafting: BoolArray,
        base_tokens: int,
        curve: CostCurve,
        drafter_curve: CostCurve,
        choice: int,
    ) -> Widths:
        """Returns the most drafts per row, 0 to the request's limit; changes nothing.

        Args:
            slots: The rows that emit a token in a pass [num_rows].
            drafting: Whether a row has a window to draft from. One that has not drafts with the
                drafter if there is one. What it does not draft from costs nothing; its width is for
                when it does, judged by what is known of it [num_rows].
            base_tokens: Tokens of the pass without drafts.
            curve: Time of a pass by its tokens.
            drafter_curve: Time of the drafter by the largest level of a pass.
            choice: Number of the choice, counted up by the caller; decides whose turn it is to be
                probed.
        """
        limits = self._limits[slots]
        if self._policy not in ("goodput", "crossover"):
            return self._choose_without_costs(slots, limits)
        choose = choose_goodput if self._policy == "goodput" else choose_crossover
        rates = self._acceptance.rate(slots)
        if self._drafter is None:
            widths, levels = choose(rates, limits, drafting, base_tokens, curve)
        else:
            rows = DrafterRows(
                self._level_acceptance.rate(slots),
                self._level_limits[slots],
                self._drafter.tokens_per_level,
                drafter_curve,
            )
            widths, levels = choose(rates, limits, drafting, base_tokens, curve, rows)
            is_probed = self._find_probed(slots, base_tokens, curve, rows, choice)
            levels = np.maximum(levels, np.minimum(rows.limits, is_probed))
        is_probed = (slots + choice) % PROBE_PERIOD == 0
        probed: Int32Array = np.maximum(widths, np.minimum(limits, is_probed))
        return Widths(probed, self._count_tokens(levels, limits))

    def remember(self, widths: Widths, drafting: BoolArray) -> None:
        """Lets new requests begin with what the drafter was given for the rows of a choice.

        Otherwise each would draft as much as it may until it is first looked at.
        """
        served = widths.drafter[~drafting]
        if (
            self._drafter is None
            or len(served) == 0
            or self._policy not in ("goodput", "crossover")
        ):
            return
        self._first_levels = round(float(self._drafter.count_levels(served).mean()))

    def _find_probed(
        self,
        slots: Int32Array,
        base_tokens: int,
        curve: CostCurve,
        rows: DrafterRows,
        choice: int,
    ) -> BoolArray:
        """Returns which rows may draft a level with the drafter even if that does not pay.

        Rows are probed together, since the drafter takes its time for one as for many, and the more
        seldom the more that takes [num_rows].
        """
        num_probed = -(-len(slots) // PROBE_SHARE)
        plain = float(curve.cost(base_tokens))
        probing = float(curve.cost(base_tokens + num_probed * rows.tokens_per_level))
        loss = (probing + float(rows.cost(1))) / plain - 1
        period = max(PROBE_PERIOD, math.ceil(loss / PROBE_LOSS))
        if choice % period:
            return np.zeros(len(slots), np.bool_)
        is_probed: BoolArray = (np.arange(len(slots)) + choice // period) % PROBE_SHARE == 0
        return is_probed

    def _choose_without_costs(self, slots: Int32Array, limits: Int32Array) -> Widths:
        """Returns widths that take no costs into account [num_rows]."""
        if self._policy == "adaptive":
            levels = self._adaptive_levels.choose(slots)
            return Widths(self._adaptive.choose(slots), self._count_tokens(levels, limits))
        return Widths(limits, self._count_tokens(self._level_limits[slots], limits))

    def _most_levels(self, limit: int) -> int:
        """Returns the levels of a request that may have `limit` drafts; a part of one is one."""
        if self._drafter is None:
            return 0
        shape = self._drafter
        return min(-(-limit * shape.max_depth // shape.max_tokens), shape.max_depth)

    def _count_tokens(self, levels: Int32Array, limits: Int32Array) -> Int32Array:
        if self._drafter is None:
            return np.zeros_like(limits)
        return np.minimum(self._drafter.count_tokens(levels), limits)
