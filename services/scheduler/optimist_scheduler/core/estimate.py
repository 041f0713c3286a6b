"""What speculation is expected to bring at present, by where drafts come from."""

from collections.abc import Iterator
from dataclasses import dataclass

from optimist_common.drafts import DraftSource
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
    slots, table, drafter = state.running, state.table, state.config.drafter
    if len(slots) == 0:
        return
    costs = state.costs_for(slots)
    plain_ns = costs.cost_of(len(slots))
    widths = table.draft_width[slots]
    verify_ns = costs.cost_of(len(slots) + int(widths.sum()))
    rate = float(state.widths.windows.rate(slots).mean())
    speedup = find_speedup(rate, float(widths.mean()), verify_ns + wait_ns, plain_ns)
    yield Estimate(DraftSource.PREDICTION, answer_ns, verify_ns, speedup)
    if drafter is None:
        return
    widths = table.drafter_width[slots]
    levels = drafter.count_levels(widths)
    verify_ns = costs.cost_of(len(slots) + int(widths.sum()))
    rate = float(state.widths.levels.rate(slots).mean())
    draft_ns = float(state.costs.drafter.cost(levels.max())) if levels.any() else 0.0
    speedup = find_speedup(rate, float(levels.mean()), draft_ns + verify_ns, plain_ns)
    yield Estimate(drafter.source, draft_ns, verify_ns, speedup)


def find_speedup(rate: float, num_drafts: float, pass_ns: float, plain_ns: float) -> float:
    """Returns tokens per time of passes that verify drafts over those of passes that do not.

    With K drafts, each accepted with chance a if those before it were, a pass emits
    1 + (a + a^2 + ... + a^K) tokens, against one token of a plain pass.
    """
    return (1 + float(expected_accepted(rate, num_drafts))) * plain_ns / pass_ns
