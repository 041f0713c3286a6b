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


class DrafterLevels:
    """How many levels the worker's drafter drafts for each row: of a tree, one node of each counts.

    What is learned of it is learned by level, too.
    """

    def __init__(self, shape: Drafter, max_num_seqs: int) -> None:
        self.shape = shape
        self.limits = np.zeros(max_num_seqs, np.int32)
        """Most levels of each request [max_num_seqs]."""
        self.acceptance = Calibration(max_num_seqs, PRIOR_TOKENS, DRAFTER_HAZARD)
        """How often they are accepted."""
        self.is_probed = np.zeros(max_num_seqs, np.bool_)
        """Rows that draft a level to find out, since the last choice [max_num_seqs]."""
        self._first = shape.max_depth

    def admit(self, slot: int, limit: int, *, uses_lookup: bool) -> None:
        """Starts a request that may have up to `limit` drafts a pass, not from every drafter."""
        self.limits[slot] = self._find_most(limit, uses_lookup=uses_lookup)
        self.acceptance.reset(slot)

    def first(self, limit: int, *, uses_lookup: bool) -> int:
        """Returns how many drafts such a request begins with."""
        levels = min(self._first, self._find_most(limit, uses_lookup=uses_lookup))
        return min(limit, int(self.shape.count_tokens(levels)))

    def _find_most(self, limit: int, *, uses_lookup: bool) -> int:
        """Returns the most levels of a request; a part of one is one."""
        if self.shape.is_lookup and not uses_lookup:
            return 0
        levels = -(-limit * self.shape.max_depth // self.shape.max_tokens)
        return min(levels, self.shape.max_depth)

    def may_serve(self, slots: SlotArray) -> bool:
        """Returns whether the drafter may draft for any of some slots."""
        return bool(np.count_nonzero(self.limits.take(slots)))

    def observe(self, slots: SlotArray, drafted: Int32Array, accepted: Int32Array) -> None:
        """Learns from the rows of a settled step that the drafter drafted for.

        What of a tree was accepted and the level after it were examined.
        """
        levels = np.maximum(self.shape.count_levels(drafted), accepted)
        examined = np.minimum(accepted + 1, levels)
        self.acceptance.observe(slots, accepted, examined, examined * np.float32(DRAFTER_HAZARD))

    def find_rows(self, slots: SlotArray, curve: CostCurve) -> DrafterRows:
        """Returns what a choice of levels has to know, by the time that the drafter takes."""
        rates, limits = self.acceptance.rate(slots), self.limits[slots]
        return DrafterRows(rates, limits, self.shape.tokens_per_level, curve)

    def choose(
        self,
        slots: SlotArray,
        served: BoolArray,
        rate: float,
        base_tokens: int,
        curve: CostCurve,
        drafter_curve: CostCurve,
        choice: int,
    ) -> Int32Array:
        """Chooses levels of rows, see `choose_levels`, and who is probed [num_rows]."""
        rows = self.find_rows(slots, drafter_curve)
        levels = choose_levels(rows, served, rate, base_tokens, curve)
        of_served = levels[served & (rows.limits > 0)]
        if len(of_served):
            # Otherwise each new request would draft all it may until it is first looked at.
            self._first = round(float(of_served.mean()))
        is_probed = _find_probed(len(slots), base_tokens, curve, rows, choice)
        self.is_probed[slots] = is_probed
        return np.maximum(levels, np.minimum(rows.limits, is_probed))


class DraftWidths:
    """By goodput, rows draft what brings more than its time (`goodput.py`); fixed: their limits.

    Windows and the drafter are learned apart.
    """

    def __init__(
        self, policy: DraftWidthPolicy, max_num_seqs: int, drafter: Drafter | None = None
    ) -> None:
        self.counts_costs = policy == "goodput"
        """Whether chances and costs count."""
        self.limits = np.zeros(max_num_seqs, np.int32)
        """Most drafts of each request [max_num_seqs]."""
        self.windows = WindowCalibration(max_num_seqs)
        """How far windows are believed."""
        self.drafter = None if drafter is None else DrafterLevels(drafter, max_num_seqs)
        self._num_passes, self._num_emitted, self._num_plain = 1, 1.0, 1.0
        """New tokens of a pass, and those that its rows would have in its time without drafts, in
        the mean of the last ones."""
        self._thresholds = Thresholds(CostCurve())
        """Since the last choice."""

    def admit(self, slot: int, limit: int, *, uses_lookup: bool = True) -> int:
        """Starts a request that may have up to `limit` drafts a pass; 0 turns them off for it.

        Returns what it may draft with the drafter, which may be a lookup that it does not use.
        """
        self.limits[slot] = limit
        self.windows.reset(slot)
        if self.drafter is None:
            return 0
        self.drafter.admit(slot, limit, uses_lookup=uses_lookup)
        return self.drafter.first(limit, uses_lookup=uses_lookup)

    def first(self, limit: int, num_nodes: int, *, uses_lookup: bool, may_wait: bool) -> int:
        """Returns how much is drafted beside the end of a request's prompt.

        By goodput only with a drafter with a model, where no step waits for a window: otherwise
        the next pass drafts the same, and knows the first token.
        """
        has_model = self.drafter is not None and not self.drafter.shape.is_lookup
        if self.counts_costs and (num_nodes or may_wait or not has_model):
            return 0
        if num_nodes or self.drafter is None:
            return min(limit, num_nodes)
        return self.drafter.first(limit, uses_lookup=uses_lookup)

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
        curve, limits, drafter = costs.of_rows(lengths), self.limits[slots], self.drafter
        if self.counts_costs:
            self.windows.refresh(slots)
            mean_length = float(lengths.mean()) if len(lengths) else 0.0
            self._thresholds = Thresholds(curve, costs.token_key_ns, mean_length)
        if drafter is None or not drafter.may_serve(slots):
            return np.zeros_like(limits)
        levels = drafter.limits[slots]
        if self.counts_costs:
            rate = self._find_rate(len(slots))
            arguments = rate, base_tokens, curve, costs.drafter, choice
            levels = drafter.choose(slots, ~drafting, *arguments)
        return np.minimum(drafter.shape.count_tokens(levels), limits)

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
        if self.drafter is None:
            raise ValueError("there is no drafter to choose for")
        rows, threshold = self.drafter.find_rows(slots, curve), 0.0
        times = np.zeros(self.drafter.shape.max_depth)
        if self.counts_costs:
            threshold = self.find_threshold(num_rows, num_rows, num_rows)
            levels_ns = curve.cost(np.arange(1, self.drafter.shape.max_depth + 1))
            times = levels_ns * self._find_rate(num_rows)
        expected = self.windows.expect(slots, hazards)
        levels, yields = choose_drafter(rows, has_window, expected, threshold, times)
        if self.counts_costs:
            levels = np.maximum(levels, np.minimum(rows.limits, self.drafter.is_probed[slots]))
        return np.minimum(self.drafter.shape.count_tokens(levels), self.limits[slots]), yields


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
