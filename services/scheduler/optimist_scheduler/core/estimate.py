"""What speculation is expected to bring at present, by where drafts come from."""

from collections.abc import Iterator
from dataclasses import dataclass

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.width.acceptance import should_use_speculation


@dataclass(frozen=True, slots=True)
class Estimate:
    """A pass in which all running rows draft from one source, as much as they may at present."""

    source: DraftSource
    acceptance_rate: float
    """Chance that a draft is accepted if those before it were, mean of the rows."""
    draft_ns: float
    """Time of the drafter, or until a proposer answers, beside which passes go on."""
    verify_ns: float
    """Time of the pass itself."""
    speedup: float
    """Tokens per time over those of a pass without drafts."""

    @property
    def overhead_ratio(self) -> float:
        """That time relative to that of the pass."""
        return self.draft_ns / self.verify_ns


def estimate_speculation(
    state: SchedulerState, answer_ns: float, wait_ns: float
) -> Iterator[Estimate]:
    """Iterates over what windows and the worker's drafter bring; nothing if nothing runs.

    Args:
        state: What runs, and what passes cost.
        answer_ns: Time until a proposer answers.
        wait_ns: Time for which a pass is held up for answers, the mean of the last passes.
    """
    slots = state.running
    if len(slots) == 0:
        return
    costs = state.costs_for(slots)
    plain_ns = float(costs.cost(len(slots)))
    widths = state.table.draft_width[slots]
    verify_ns = float(costs.cost(len(slots) + int(widths.sum())))
    rate, levels = float(state.widths.windows.rate(slots).mean()), float(widths.mean())
    crossover = should_use_speculation(rate, levels, 0.0, verify_ns + wait_ns, plain_ns)
    yield Estimate(DraftSource.PREDICTION, rate, answer_ns, verify_ns, float(crossover.speedup))
    drafter = state.config.drafter
    if drafter is None:
        return
    widths = state.table.drafter_width[slots]
    depths = drafter.count_levels(widths)
    verify_ns = float(costs.cost(len(slots) + int(widths.sum())))
    rate, levels = float(state.widths.levels.rate(slots).mean()), float(depths.mean())
    draft_ns = float(state.drafter_costs.cost(depths.max())) if levels else 0.0
    per_draft = draft_ns / max(levels, 1e-9)
    crossover = should_use_speculation(rate, levels, per_draft, verify_ns, plain_ns)
    yield Estimate(drafter.source, rate, draft_ns, verify_ns, float(crossover.speedup))
