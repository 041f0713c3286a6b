"""How many drafts each row may have: one object that learns from results and chooses widths."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.base.values import (
    BoolArray,
    Float32Array,
    Int32Array,
    SlotArray,
)
from optimist_scheduler.core.width.acceptance import (
    DRAFTER_PRIOR,
    START_WIDTH,
    Acceptance,
    AdaptiveWidths,
    Drafter,
    DrafterRows,
)
from optimist_scheduler.core.width.calibration import WindowCalibration
from optimist_scheduler.core.width.drafting import choose_drafter, find_window_worth
from optimist_scheduler.core.width.goodput import Prices, choose_levels

DraftWidthPolicy = Literal["goodput", "adaptive", "fixed"]

RATE_MEMORY = 1 / 16
"""Weight of a pass in the mean of what passes bring, once there were so many."""
PROBE_PERIOD = 64
"""Choices between two probes of a drafter that is off."""
PROBE_SHARE = 8
"""Of the rows for which the drafter is off, one in so many is probed at a time."""
PROBE_LOSS = 0.01
"""Share of the time that probes of the drafter may take."""


class Widths(NamedTuple):
    """Most drafts of the next passes [num_rows]."""

    windows: Int32Array
    """From the window; by goodput, what `DraftWidths.choose_worth` leaves of it."""
    drafter: Int32Array
    """From the worker's drafter, all branches of a tree together."""


class DraftWidths:
    """What is known of the rows' drafts, by slot, and the policy that makes widths of it.

    - fixed: each request's own limit.
    - goodput: the drafts that bring more than their time does otherwise (`goodput.py`).
    - adaptive: one up or down by the accepted share (`AdaptiveWidths`).

    Windows and the drafter are learned apart. Of the drafter, widths are levels: of a tree, one
    node of a level at most is accepted.
    """

    def __init__(
        self, policy: DraftWidthPolicy, max_num_seqs: int, drafter: Drafter | None = None
    ) -> None:
        """Starts with empty slots."""
        self._policy = policy
        self._drafter = drafter
        self._limits = np.zeros(max_num_seqs, np.int32)
        self._calibration = WindowCalibration(max_num_seqs)
        self._num_passes, self._num_emitted, self._num_plain = 1, 1.0, 1.0
        """New tokens of a pass, and those that its rows would have in its time without drafts, in
        the mean of the last ones."""
        self._prices = Prices(CostCurve())
        """Since the last choice."""
        self.goes_by_value = policy == "goodput"
        """Whether what windows say of their chances counts."""
        self.goes_by_share = policy == "adaptive"
        """Whether the share of accepted drafts counts."""
        self._adaptive = AdaptiveWidths(max_num_seqs)
        self._level_limits = np.zeros(max_num_seqs, np.int32)
        self._level_acceptance = Acceptance(max_num_seqs, DRAFTER_PRIOR)
        self._adaptive_levels = AdaptiveWidths(max_num_seqs)
        self._is_probed = np.zeros(max_num_seqs, np.bool_)
        """Rows for which the drafter drafts a level to find out, since the last choice."""
        self._first_levels = (
            START_WIDTH if policy == "adaptive" else drafter.max_depth if drafter else 0
        )

    def admit(self, slot: int, limit: int, *, uses_lookup: bool = True) -> tuple[int, int]:
        """Starts a request that may have up to `limit` drafts a pass; 0 turns them off for it.

        Args:
            slot: Its slot.
            limit: Its limit.
            uses_lookup: Whether it drafts with a drafter that looks drafts up, see `Request`.

        Returns:
            What it may draft to begin with, from its window and from the drafter.
        """
        self._limits[slot] = limit
        self._calibration.reset(slot)
        if self.goes_by_share:
            self._adaptive.reset(slot, limit)
        if self._drafter is not None:
            self._level_limits[slot] = most = self._most_levels(limit, uses_lookup=uses_lookup)
            self._level_acceptance.reset(slot)
            self._adaptive_levels.reset(slot, most)
        return self._first_width(limit), self._first_of_drafter(limit, uses_lookup=uses_lookup)

    def first(self, limit: int, num_nodes: int, *, uses_lookup: bool, may_wait: bool) -> int:
        """Returns how much is drafted beside the end of a request's prompt.

        By goodput only with a drafter with a model, where no step waits for a window: otherwise
        the next pass drafts the same, and knows the first token.

        Args:
            limit: The request's limit.
            num_nodes: Drafts of its window.
            uses_lookup: See `admit`.
            may_wait: Whether a step may wait for its window.
        """
        has_model = self._drafter is not None and not self._drafter.is_lookup
        if self.goes_by_value and (num_nodes or may_wait or not has_model):
            return 0
        if num_nodes:
            return min(self._first_width(limit), num_nodes)
        return self._first_of_drafter(limit, uses_lookup=uses_lookup)

    def _first_width(self, limit: int) -> int:
        return min(START_WIDTH, limit) if self._policy == "adaptive" else limit

    def _first_of_drafter(self, limit: int, *, uses_lookup: bool = True) -> int:
        """Returns how much of the drafter such a request begins with; changes nothing."""
        if self._drafter is None:
            return 0
        levels = min(self._first_levels, self._most_levels(limit, uses_lookup=uses_lookup))
        return min(limit, int(self._drafter.count_tokens(levels)))

    def find_limits(self, slots: SlotArray) -> Int32Array:
        """Returns the most drafts that each slot may have [num_rows]."""
        return self._limits.take(slots)

    @property
    def scales(self) -> Float32Array:
        """What the hazards that windows estimate are multiplied by [max_num_seqs]."""
        return self._calibration.scales

    def observe(
        self,
        slots: SlotArray,
        accepted: Int32Array,
        examined: Int32Array,
        estimated: Float32Array,
        firsts: Float32Array,
    ) -> None:
        """Learns from the windows of the rows of a settled step.

        A row that had a window but no drafts counts too: its emitted tokens are compared with the
        window as if that had been drafted. See `Calibration.observe`.
        """
        self._calibration.observe(slots, accepted, examined, estimated, firsts)

    def choose_worth(
        self,
        slots: SlotArray,
        num_tokens: int,
        most: Int32Array,
        count: Callable[[Float32Array], Int32Array],
        lengths: Int32Array,
        firsts: Float32Array,
    ) -> Int32Array:
        """Returns how many drafts of windows are worth their cost [num_rows].

        Args:
            slots: The rows' [num_rows].
            num_tokens: Tokens of the pass without drafts.
            most: Drafts that each row has [num_rows].
            count: Returns how many of them have at most a hazard that is given for each row, by
                what the windows say [num_rows].
            lengths: Tokens of the rows, which drafts attend to [num_rows].
            firsts: Hazard of the first of them, by what the windows say [num_rows].
        """
        find_depths = self._calibration.find_depths(slots, firsts)
        return self._prices.choose_worth(
            self._find_rate(len(slots)),
            num_tokens,
            most,
            lambda depth: count(find_depths(depth)),
            lengths,
        )

    def _find_rate(self, num_rows: int) -> float:
        """Returns tokens per nanosecond that passes of some rows bring: no less than undrafted."""
        speedup = max(self._num_emitted / self._num_plain, 1.0)
        return speedup * self._prices.find_plain_rate(num_rows)

    def find_price(self, num_rows: int, num_tokens: int, num_drafts: int) -> float:
        """Returns the chance from which on a draft is worth its time, 0 where costs do not count.

        Args:
            num_rows: Rows of the pass.
            num_tokens: Tokens of the pass without drafts.
            num_drafts: Its drafts.
        """
        if not (self.goes_by_value and num_drafts):
            return 0.0
        return self._prices.find_price(self._find_rate(num_rows), num_tokens, num_drafts)

    def observe_pass(self, num_emitted: int, num_plain: float) -> None:
        """Learns what a pass brings.

        Args:
            num_emitted: New tokens of all rows.
            num_plain: Tokens that these rows would have in the time of the pass without drafts.
        """
        self._num_passes += 1
        memory = max(RATE_MEMORY, 1 / self._num_passes)
        self._num_emitted += memory * (num_emitted - self._num_emitted)
        self._num_plain += memory * (num_plain - self._num_plain)

    def observe_drafts(self, slots: SlotArray, drafted: Int32Array, accepted: Int32Array) -> None:
        """Moves widths that go by the share of accepted drafts.

        Args:
            slots: Each at most once [num_rows].
            drafted: Drafts of windows that were verified [num_rows].
            accepted: How many of them were accepted [num_rows].
        """
        self._adaptive.observe(slots, drafted, accepted)

    def observe_drafter(self, slots: SlotArray, drafted: Int32Array, accepted: Int32Array) -> None:
        """Learns from the rows of a settled step that the drafter drafted for; see `observe`.

        What of a tree was accepted and the level after it were examined.
        """
        if self._drafter is None:
            return
        levels = np.maximum(self._drafter.count_levels(drafted), accepted)
        self._level_acceptance.observe(slots, accepted, np.minimum(accepted + 1, levels))
        if self._policy == "adaptive":
            self._adaptive_levels.observe(slots, levels, accepted)

    def rate(self, slots: SlotArray) -> Float32Array:
        """Returns the chance that a draft is accepted if those before it were [num_rows]."""
        return self._calibration.rate(slots)

    def rate_of_drafter(self, slots: SlotArray) -> Float32Array:
        """Returns the same for levels of the drafter [num_rows]."""
        return self._level_acceptance.rate(slots)

    def choose(
        self,
        slots: SlotArray,
        drafting: BoolArray,
        base_tokens: int,
        curve: CostCurve,
        drafter_curve: CostCurve,
        choice: int,
        key_ns: float = 0.0,
        mean_length: float = 0.0,
    ) -> Widths:
        """Returns the most drafts per row, 0 to the request's limit.

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
            key_ns: What a draft takes longer for each token that its row has more than the mean.
            mean_length: That mean, of the rows.
        """
        limits = self._limits[slots]
        if not self.goes_by_value:
            return self._choose_without_costs(slots, limits)
        self._calibration.refresh(slots)
        self._prices = Prices(curve, key_ns, mean_length)
        rows = self._find_drafter_rows(slots, drafter_curve)
        if rows is None:
            return Widths(limits, np.zeros_like(limits))
        rate = self._find_rate(len(slots))
        levels = choose_levels(rows, ~drafting, rate, base_tokens, curve)
        served = levels[~drafting & (rows.limits > 0)]
        if len(served):
            # Otherwise each new request would draft all it may until it is first looked at.
            self._first_levels = round(float(served.mean()))
        is_probed = self._find_probed(slots, base_tokens, curve, rows, choice)
        self._is_probed[slots] = is_probed
        levels = np.maximum(levels, np.minimum(rows.limits, is_probed))
        return Widths(limits, self._count_tokens(levels, limits))

    def _find_drafter_rows(self, slots: SlotArray, curve: CostCurve) -> DrafterRows | None:
        if self._drafter is None or not self.may_use_drafter(slots):
            return None
        return DrafterRows(
            self._level_acceptance.rate(slots),
            self._level_limits[slots],
            self._drafter.tokens_per_level,
            curve,
        )

    def choose_drafter(
        self,
        slots: SlotArray,
        widths: Int32Array,
        has_window: BoolArray,
        hazards: Float32Array,
        curve: CostCurve,
        num_rows: int,
    ) -> tuple[Int32Array, BoolArray]:
        """Returns what a drafter with a model may draft for rows, and which windows yield to it.

        Args:
            slots: The rows' [num_rows].
            widths: What it may draft at present [num_rows].
            has_window: Whether a row has a window to draft from [num_rows].
            hazards: Hazards that windows say of what comes next, cumulated and infinite beyond
                their ends [num_rows, most drafts].
            curve: Time of the drafter by the largest level of a pass.
            num_rows: Rows of the next pass, those that wait for a slot with them.
        """
        if self._drafter is None:
            raise ValueError("there is no drafter to choose for")
        hazards = self._calibration.expect(slots, hazards)
        limits, price = self._drafter.count_levels(widths), 0.0
        times = np.zeros(self._drafter.max_depth)
        if self.goes_by_value:
            limits, price = self._level_limits[slots], self.find_price(num_rows, num_rows, num_rows)
            levels_ns = curve.cost(np.arange(1, self._drafter.max_depth + 1))
            times = levels_ns * self._find_rate(num_rows)
        levels, yields = choose_drafter(
            self._level_acceptance.rate(slots),
            limits,
            has_window,
            find_window_worth(hazards, price),
            price * self._drafter.tokens_per_level,
            times,
        )
        if self.goes_by_value:
            levels = np.maximum(levels, np.minimum(limits, self._is_probed[slots]))
        return self._count_tokens(levels, self._limits[slots]), yields

    def may_use_drafter(self, slots: SlotArray) -> bool:
        """Returns whether the drafter may draft for any of some slots."""
        return self._drafter is not None and bool(np.count_nonzero(self._level_limits.take(slots)))

    def _find_probed(
        self,
        slots: SlotArray,
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

    def _choose_without_costs(self, slots: SlotArray, limits: Int32Array) -> Widths:
        """Returns widths that take no costs into account [num_rows]."""
        if self._policy == "adaptive":
            levels = self._adaptive_levels.choose(slots)
            return Widths(self._adaptive.choose(slots), self._count_tokens(levels, limits))
        return Widths(limits, self._count_tokens(self._level_limits[slots], limits))

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
