"""How many drafts each row may have: one object that learns from results and chooses widths."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.base.values import (
    BoolArray,
    Float32Array,
    FloatArray,
    Int32Array,
    SlotArray,
)
from optimist_scheduler.core.width.acceptance import (
    DRAFTER_PRIOR,
    START_WIDTH,
    Acceptance,
    AdaptiveWidths,
    Calibration,
    Drafter,
    DrafterRows,
)
from optimist_scheduler.core.width.crossover import choose_crossover
from optimist_scheduler.core.width.drafting import (
    choose_drafter,
    find_window_worth,
)
from optimist_scheduler.core.width.goodput import Prices, choose_goodput
from optimist_scheduler.core.windows.window import Window

DraftWidthPolicy = Literal["goodput", "adaptive", "crossover", "fixed"]

RATE_MEMORY = 1 / 16
"""Weight of a pass in the mean of what passes bring."""
PROBE_PERIOD = 64
"""A row whose drafts are off gets one with every so many choices."""
PROBE_SHARE = 8
"""Of the rows for which the drafter is off, one in so many is probed at a time."""
PROBE_LOSS = 0.01
"""Share of the time that probes of the drafter may take."""


class Widths(NamedTuple):
    """Most drafts of the next passes [num_rows]."""

    windows: Int32Array
    """From the window; of one that says values, what `DraftWidths.choose_worth` leaves of it."""
    drafter: Int32Array
    """From the worker's drafter, all branches of a tree together."""


class DraftWidths:
    """What is known of the rows' drafts, by slot, and the policy that makes widths of it.

    - fixed: each request's own limit.
    - goodput: most expected tokens per time of the pass (`goodput.py`).
    - adaptive: one up or down by the accepted share (`AdaptiveWidths`).
    - crossover: the limit where that is faster than no drafts, else 0 (`crossover.py`).

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
        self._calibration = Calibration(max_num_seqs)
        self._num_emitted, self._ns = 0.0, 0.0
        """Tokens and time of a pass without what prompts take, in the mean of the last ones."""
        self._prices = Prices(0.0, CostCurve())
        """Since the last choice."""
        self.goes_by_value = policy == "goodput"
        """Whether what windows say of their chances counts."""
        self.goes_by_share = policy == "adaptive"
        """Whether the share of accepted drafts counts."""
        self.scales = np.ones(max_num_seqs, np.float32)
        """What the hazards that windows estimate are multiplied by, since the last choice
        [max_num_seqs]."""
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
        self.scales[slot] = self._calibration.reset(slot)
        if self.goes_by_share:
            self._adaptive.reset(slot, limit)
        if self._drafter is not None:
            self._level_limits[slot] = most = self._most_levels(limit, uses_lookup=uses_lookup)
            self._level_acceptance.reset(slot)
            self._adaptive_levels.reset(slot, most)
        return self._first_width(limit), self.first_of_drafter(limit, uses_lookup=uses_lookup)

    def first(self, limit: int, window: Window, num_tokens: int) -> int:
        """Returns how much of its window such a request begins with; changes nothing.

        Args:
            limit: Its limit.
            window: Its window.
            num_tokens: Tokens of the pass without these drafts.
        """
        width = min(self._first_width(limit), window.num_nodes)
        if not (self.goes_by_value and window.has_values and width):
            return width
        hazards, scale = window.find_hazards()[:width], np.float32(self._calibration.first_scale)
        if window.tree.parents is not None:
            hazards = np.maximum.accumulate(hazards)
        if self._prices.is_worth(hazards[-1] * scale):
            return width
        hazards = hazards * scale

        def count(depth: float | FloatArray) -> Int32Array:
            return np.array([hazards.searchsorted(np.float32(depth), side="right")], np.int32)

        most = np.array([width], np.int32)
        return int(self._prices.choose_worth(num_tokens, most, count)[0])

    def _first_width(self, limit: int) -> int:
        return min(START_WIDTH, limit) if self._policy == "adaptive" else limit

    def first_of_drafter(self, limit: int, *, uses_lookup: bool = True) -> int:
        """Returns how much of the drafter such a request begins with; changes nothing."""
        if self._drafter is None:
            return 0
        levels = min(self._first_levels, self._most_levels(limit, uses_lookup=uses_lookup))
        return min(limit, int(self._drafter.count_tokens(levels)))

    def find_limits(self, slots: SlotArray) -> Int32Array:
        """Returns the most drafts that each slot may have [num_rows]."""
        return self._limits.take(slots)

    def take_window(self, slot: int, *, has_values: bool) -> int | None:
        """Returns the width that a new window is given, None for the one that the row has."""
        return int(self._limits[slot]) if has_values and self.goes_by_value else None

    def observe(
        self,
        slots: SlotArray,
        accepted: Int32Array,
        examined: Int32Array,
        estimated: Float32Array,
        is_valued: BoolArray,
        is_first: BoolArray,
    ) -> None:
        """Learns from the windows of the rows of a settled step.

        A row that had a window but no drafts counts too: its emitted tokens are compared with the
        window as if that had been drafted.

        Args:
            slots: Each at most once [num_rows].
            accepted: Tokens of the window that agreed with the output [num_rows].
            examined: Tokens that were compared with it: those and the first that did not agree; a
                row with 0 is left as it is [num_rows].
            estimated: Hazard of those that agreed and the first that did not, by what the windows
                say [num_rows].
            is_valued: Whether they say it, and it is not what is taken for it [num_rows].
            is_first: Whether they are at the beginning of the output [num_rows].
        """
        self._calibration.observe(slots, accepted, examined, estimated, is_valued, is_first)
        missed = accepted < examined
        if np.count_nonzero(missed):
            # Doubts count at once, not only with the next choice.
            slots = slots[missed]
            self.scales[slots] = self._calibration.weigh(slots)[1]

    def choose_worth(
        self,
        slots: SlotArray,
        num_tokens: int,
        most: Int32Array,
        count: Callable[[Float32Array], Int32Array],
        lengths: Int32Array,
    ) -> Int32Array:
        """Returns how many drafts of windows that say values are worth their cost [num_rows].

        Args:
            slots: The rows' [num_rows].
            num_tokens: Tokens of the pass without drafts.
            most: Drafts that each row has [num_rows].
            count: Returns how many of them have at most a hazard that is given for each row, by
                what the windows say [num_rows].
            lengths: Tokens of the rows, which drafts attend to [num_rows].
        """
        scales = self.scales[slots]
        return self._prices.choose_worth(
            num_tokens, most, lambda depth: count(np.asarray(depth, np.float32) / scales), lengths
        )

    def find_price(self, num_tokens: int, num_drafts: int) -> float:
        """Returns the chance from which on a draft is worth its time, 0 where costs do not count.

        Args:
            num_tokens: Tokens of the pass without drafts.
            num_drafts: Its drafts.
        """
        if not (self.goes_by_value and num_drafts):
            return 0.0
        return self._prices.find_price(num_tokens, num_drafts)

    def observe_pass(self, num_emitted: int, ns: float) -> None:
        """Learns what a pass brings.

        Args:
            num_emitted: New tokens of all rows.
            ns: Time of the pass in nanoseconds, without what prompts take.
        """
        if num_emitted == 0:
            return
        memory = RATE_MEMORY if self._num_emitted else 1.0
        self._num_emitted += memory * (num_emitted - self._num_emitted)
        self._ns += memory * (ns - self._ns)

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
        return self._calibration.weigh(slots)[0]

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
        is_valued: BoolArray | None = None,
        find_hazards: Callable[[int], Float32Array] | None = None,
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
            is_valued: Whether a row goes by what its window says; by default none does [num_rows].
            find_hazards: Returns the cumulated hazards that windows say of so many tokens that come
                next, infinite beyond their ends [num_rows, most drafts].
            key_ns: What a draft takes longer for each token that its row has more than the mean.
            mean_length: That mean, of the rows.
        """
        limits = self._limits[slots]
        if self._policy not in ("goodput", "crossover"):
            return self._choose_without_costs(slots, limits)
        rates, scales = self._calibration.weigh(slots)
        rows = self._find_drafter_rows(slots, drafter_curve)
        arguments = rates, limits, drafting, base_tokens, curve, rows
        if self.goes_by_value:
            self.scales[slots] = scales
            # Before the first pass, as if one row decoded without drafts.
            rate = self._num_emitted / self._ns if self._ns else 1 / float(curve.cost(1))
            self._prices = Prices(rate, curve, key_ns, mean_length)
            num_valued = 0 if is_valued is None else np.count_nonzero(is_valued)
            # Where the window itself says how many are worth it, nothing else limits them.
            if rows is None and num_valued == len(slots):
                return Widths(limits, np.zeros_like(limits))
            if is_valued is None or find_hazards is None or not num_valued:
                widths, levels = choose_goodput(*arguments)
            else:
                hazards = find_hazards(int(np.maximum.reduce(limits))) * scales[:, None]
                hazards[~is_valued, :1] = np.nan
                widths, levels = choose_goodput(*arguments, hazards)
                widths = np.where(is_valued, limits, widths)
        else:
            widths, levels = choose_crossover(*arguments)
        if rows is not None:
            is_probed = self._find_probed(slots, base_tokens, curve, rows, choice)
            self._is_probed[slots] = is_probed
            levels = np.maximum(levels, np.minimum(rows.limits, is_probed))
        is_probed = (slots + choice) % PROBE_PERIOD == 0
        probed: Int32Array = np.maximum(widths, np.minimum(limits, is_probed))
        return Widths(probed, self._count_tokens(levels, limits))

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
    ) -> tuple[Int32Array, BoolArray]:
        """Returns what a drafter with a model may draft for rows, and which windows yield to it.

        Args:
            slots: The rows' [num_rows].
            widths: What it may draft at present [num_rows].
            has_window: Whether a row has a window to draft from [num_rows].
            hazards: Hazards that windows say of what comes next, cumulated and infinite beyond
                their ends [num_rows, most drafts].
            curve: Time of the drafter by the largest level of a pass.
        """
        if self._drafter is None:
            raise ValueError("there is no drafter to choose for")
        hazards = hazards * self._calibration.weigh(slots)[1][:, None]
        limits, price = self._drafter.count_levels(widths), 0.0
        times = np.zeros(self._drafter.max_depth)
        if self.goes_by_value:
            limits, price = self._level_limits[slots], self.find_price(len(slots), len(slots))
            rate = self._num_emitted / self._ns if self._ns else 0.0
            times = curve.cost(np.arange(1, self._drafter.max_depth + 1)) * rate
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

    def remember(self, slots: SlotArray, widths: Widths, drafting: BoolArray) -> None:
        """Lets new requests begin with what the drafter was given for the rows of a choice.

        Otherwise each would draft as much as it may until it is first looked at. Rows that it never
        drafts for say nothing of it.
        """
        if self._drafter is None or self._policy not in ("goodput", "crossover"):
            return
        served = widths.drafter[~drafting & (self._level_limits[slots] > 0)]
        if len(served) == 0:
            return
        self._first_levels = round(float(self._drafter.count_levels(served).mean()))

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
