"""How many drafts each row may have: what is known of them by slot, and what passes bring."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.base.values import BoolArray, Float32Array, Int32Array, SlotArray
from optimist_scheduler.core.width.acceptance import (
    DRAFTER_HAZARD,
    PRIOR_TOKENS,
    Calibration,
    Drafter,
    WindowCalibration,
)
from optimist_scheduler.core.width.costs import PassCosts
from optimist_scheduler.core.width.goodput import (
    DrafterRows,
    Thresholds,
    choose_drafter,
    choose_levels,
)

DraftWidthPolicy = Literal["goodput", "fixed"]

RATE_MEMORY = 1 / 16
"""Weight of a pass in the mean of what passes bring, once there were so many."""
PROBE_PERIOD = 64
"""Choices between two probes of a drafter that is off."""
PROBE_SHARE = 8
"""Of the rows for which the drafter is off, one in so many is probed at a time."""
PROBE_LOSS = 0.01
"""Share of the time that probes of the drafter may take."""


class DraftWidths:
    """By goodput, rows draft what brings more than its time (`goodput.py`); fixed: their limits.

    Windows and the drafter are learned apart. Of the drafter, widths are levels: of a tree, one
    node of a level at most is accepted.
    """

    def __init__(
        self, policy: DraftWidthPolicy, max_num_seqs: int, drafter: Drafter | None = None
    ) -> None:
        self._drafter = drafter
        self.counts_costs = policy == "goodput"
        """Whether chances and costs count."""
        self.limits = np.zeros(max_num_seqs, np.int32)
        """Most drafts of each request [max_num_seqs]."""
        self.windows = WindowCalibration(max_num_seqs)
        """How far windows are believed."""
        self._num_passes, self._num_emitted, self._num_plain = 1, 1.0, 1.0
        """New tokens of a pass, and those that its rows would have in its time without drafts, in
        the mean of the last ones."""
        self._thresholds = Thresholds(CostCurve())
        """Since the last choice."""
        self._level_limits = np.zeros(max_num_seqs, np.int32)
        self.levels = Calibration(max_num_seqs, PRIOR_TOKENS, DRAFTER_HAZARD)
        """How often levels of the drafter are accepted."""
        self._is_probed = np.zeros(max_num_seqs, np.bool_)
        """Rows for which the drafter drafts a level to find out, since the last choice."""
        self._first_levels = drafter.max_depth if drafter else 0

    def admit(self, slot: int, limit: int, *, uses_lookup: bool = True) -> int:
        """Starts a request that may have up to `limit` drafts a pass; 0 turns them off for it.

        Returns what it may draft with the drafter, which may be a lookup that it does not use.
        """
        self.limits[slot] = limit
        self.windows.reset(slot)
        if self._drafter is not None:
            self._level_limits[slot] = self._most_levels(limit, uses_lookup=uses_lookup)
            self.levels.reset(slot)
        return self._first_of_drafter(limit, uses_lookup=uses_lookup)

    def first(self, limit: int, num_nodes: int, *, uses_lookup: bool, may_wait: bool) -> int:
        """Returns how much is drafted beside the end of a request's prompt.

        By goodput only with a drafter with a model, where no step waits for a window: otherwise
        the next pass drafts the same, and knows the first token.
        """
        has_model = self._drafter is not None and not self._drafter.is_lookup
        if self.counts_costs and (num_nodes or may_wait or not has_model):
            return 0
        if num_nodes:
            return min(limit, num_nodes)
        return self._first_of_drafter(limit, uses_lookup=uses_lookup)

    def _first_of_drafter(self, limit: int, *, uses_lookup: bool = True) -> int:
        """Returns how much of the drafter such a request begins with; changes nothing."""
        if self._drafter is None:
            return 0
        levels = min(self._first_levels, self._most_levels(limit, uses_lookup=uses_lookup))
        return min(limit, int(self._drafter.count_tokens(levels)))

    def choose_paying(
        self,
        slots: SlotArray,
        num_tokens: int,
        most: Int32Array,
        count: Callable[[Float32Array], Int32Array],
        lengths: Int32Array,
        firsts: Float32Array,
    ) -> Int32Array:
        """Returns how many drafts of windows pay in a pass; see `Thresholds.choose` [num_rows].

        `count` takes hazards as windows say them, and `firsts` is that of each row's first draft.
        """
        find_said = self.windows.inverse(slots, firsts)
        return self._thresholds.choose(
            self._find_rate(len(slots)),
            num_tokens,
            most,
            lambda hazard: count(find_said(hazard)),
            lengths,
        )

    def _find_rate(self, num_rows: int) -> float:
        """Returns tokens per nanosecond that passes of some rows bring: no less than undrafted."""
        speedup = max(self._num_emitted / self._num_plain, 1.0)
        return speedup * self._thresholds.find_plain_rate(num_rows)

    def find_threshold(self, num_rows: int, num_tokens: int, num_drafts: int) -> float:
        """Returns from which chance on drafts of a pass pay; 0 where costs do not count."""
        if not (self.counts_costs and num_drafts):
            return 0.0
        return self._thresholds.find(self._find_rate(num_rows), num_tokens, num_drafts)

    def observe_pass(self, num_emitted: int, num_plain: float) -> None:
        """Learns what a pass brings, and what its rows would have in its time without drafts."""
        self._num_passes += 1
        memory = max(RATE_MEMORY, 1 / self._num_passes)
        self._num_emitted += memory * (num_emitted - self._num_emitted)
        self._num_plain += memory * (num_plain - self._num_plain)

    def observe_drafter(self, slots: SlotArray, drafted: Int32Array, accepted: Int32Array) -> None:
        """Learns from the rows of a settled step that the drafter drafted for.

        What of a tree was accepted and the level after it were examined.
        """
        if self._drafter is not None:
            levels = np.maximum(self._drafter.count_levels(drafted), accepted)
            examined = np.minimum(accepted + 1, levels)
            self.levels.observe(slots, accepted, examined, examined * np.float32(DRAFTER_HAZARD))

    def choose(
        self,
        slots: SlotArray,
        drafting: BoolArray,
        base_tokens: int,
        costs: PassCosts,
        lengths: Int32Array,
        choice: int,
    ) -> Int32Array:
        """Takes what passes cost; returns the most drafts of the drafter per row [num_rows].

        Rows that are `drafting` have a window, and leave the drafter to the others. A pass has
        `base_tokens` without drafts, and rows of some lengths. The number of the choice decides who
        is probed.
        """
        limits = self.limits[slots]
        if not self.counts_costs:
            return self._count_tokens(self._level_limits[slots], limits)
        self.windows.refresh(slots)
        curve = costs.of_rows(lengths)
        mean_length = float(lengths.mean()) if len(lengths) else 0.0
        self._thresholds = Thresholds(curve, costs.token_key_ns, mean_length)
        if not self.may_use_drafter(slots):
            return np.zeros_like(limits)
        rows = self._find_drafter_rows(slots, self._level_limits[slots], costs.drafter)
        rate = self._find_rate(len(slots))
        levels = choose_levels(rows, ~drafting, rate, base_tokens, curve)
        served = levels[~drafting & (rows.limits > 0)]
        if len(served):
            # Otherwise each new request would draft all it may until it is first looked at.
            self._first_levels = round(float(served.mean()))
        is_probed = _find_probed(len(slots), base_tokens, curve, rows, choice)
        self._is_probed[slots] = is_probed
        levels = np.maximum(levels, np.minimum(rows.limits, is_probed))
        return self._count_tokens(levels, limits)

    def choose_drafter(
        self,
        slots: SlotArray,
        has_window: BoolArray,
        hazards: Float32Array,
        curve: CostCurve,
        num_rows: int,
    ) -> tuple[Int32Array, BoolArray]:
        """Returns what a drafter with a model may draft for rows, and which windows yield to it.

        `num_rows` are the rows of the next pass, those that wait for a slot with them; see
        `goodput.choose_drafter` for the others.
        """
        if self._drafter is None:
            raise ValueError("there is no drafter to choose for")
        limits, threshold = self._level_limits[slots], 0.0
        times = np.zeros(self._drafter.max_depth)
        if self.counts_costs:
            threshold = self.find_threshold(num_rows, num_rows, num_rows)
            levels_ns = curve.cost(np.arange(1, self._drafter.max_depth + 1))
            times = levels_ns * self._find_rate(num_rows)
        rows = self._find_drafter_rows(slots, limits, curve)
        expected = self.windows.expect(slots, hazards)
        levels, yields = choose_drafter(rows, has_window, expected, threshold, times)
        if self.counts_costs:
            levels = np.maximum(levels, np.minimum(limits, self._is_probed[slots]))
        return self._count_tokens(levels, self.limits[slots]), yields

    def may_use_drafter(self, slots: SlotArray) -> bool:
        """Returns whether the drafter may draft for any of some slots."""
        return self._drafter is not None and bool(np.count_nonzero(self._level_limits.take(slots)))

    def _find_drafter_rows(
        self, slots: SlotArray, limits: Int32Array, curve: CostCurve
    ) -> DrafterRows:
        weight = 1.0 if self._drafter is None else self._drafter.tokens_per_level
        return DrafterRows(self.levels.rate(slots), limits, weight, curve)

    def _most_levels(self, limit: int, *, uses_lookup: bool) -> int:
        """Returns the levels of a request that may have `limit` drafts; a part of one is one."""
        if self._drafter is None or (self._drafter.is_lookup and not uses_lookup):
            return 0
        shape = self._drafter
        return min(-(-limit * shape.max_depth // shape.max_tokens), shape.max_depth)

    def _count_tokens(self, levels: Int32Array, limits: Int32Array) -> Int32Array:
        if self._drafter is None:
            return np.zeros_like(limits)
        return np.minimum(self._drafter.count_tokens(levels), limits)


def _find_probed(
    num_rows: int, base_tokens: int, curve: CostCurve, rows: DrafterRows, choice: int
) -> BoolArray:
    """Returns which rows may draft a level with the drafter even if that does not pay.

    Rows are probed together, since the drafter takes its time for one as for many, and the more
    seldom the more that takes [num_rows].
    """
    num_probed = -(-num_rows // PROBE_SHARE)
    plain = float(curve.cost(base_tokens))
    probing = float(curve.cost(base_tokens + num_probed * rows.tokens_per_level))
    loss = (probing + float(rows.cost(1))) / plain - 1
    period = max(PROBE_PERIOD, math.ceil(loss / PROBE_LOSS))
    if choice % period:
        return np.zeros(num_rows, np.bool_)
    is_probed: BoolArray = (np.arange(num_rows) + choice // period) % PROBE_SHARE == 0
    return is_probed
