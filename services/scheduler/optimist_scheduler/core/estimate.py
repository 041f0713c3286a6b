"""What speculation is expected to bring at present, by where drafts come from."""

from collections.abc import Iterator
from dataclasses import dataclass

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.base.values import Float32Array, Int32Array
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.width.acceptance import expected_accepted


@dataclass(frozen=True, slots=True)
class Estimate:
    """A pass in which all running rows draft from one source, as much as they may at present."""

    source: DraftSource
    draft_ns: float
    """Time of the drafter, or until a proposer answers, beside which passes go on."""
    verify_ns: float
    """Time of the pass itself."""
    speedup: float
    """Tokens per time over those of a pass without drafts."""


def estimate_speculation(
    state: SchedulerState, answer_ns: float, wait_ns: float
) -> Iterator[Estimate]:
    """Iterates over what windows and the worker's drafter bring; nothing if nothing runs.

    Args:
        state: What runs, and what passes cost.
        answer_ns: Time until a proposer answers.
        wait_ns: Time for which a pass is held up for answers, the mean of the last passes.
    """
    slots, table, drafter = state.running, state.table, state.widths.drafter
    if len(slots) == 0:
        return
    costs, num_rows = state.costs_for(slots), len(slots)

    def expect(
        source: DraftSource,
        rates: Float32Array,
        drafts: Int32Array,
        levels: Int32Array,
        draft_ns: float,
        held_ns: float,
    ) -> Estimate:
        """Takes drafts and their levels by row, and for how long they hold up the pass.

        With K drafts, each accepted with chance a if those before it were, a pass emits
        1 + (a + a^2 + ... + a^K) tokens, against one token of a plain pass.
        """
        verify_ns = costs.cost_of(num_rows + int(drafts.sum()))
        num_tokens = 1 + float(expected_accepted(float(rates.mean()), float(levels.mean())))
        speedup = num_tokens * costs.cost_of(num_rows) / (verify_ns + held_ns)
        return Estimate(source, draft_ns, verify_ns, speedup)

    rates, drafts = state.widths.windows.rate(slots), table.draft_width[slots]
    yield expect(DraftSource.PREDICTION, rates, drafts, drafts, answer_ns, wait_ns)
    if drafter is not None:
        rates, drafts = drafter.acceptance.rate(slots), table.drafter_width[slots]
        levels = drafter.shape.count_levels(drafts)
        draft_ns = float(state.costs.drafter.cost(levels.max())) if levels.any() else 0.0
        yield expect(drafter.shape.source, rates, drafts, levels, draft_ns, draft_ns)
