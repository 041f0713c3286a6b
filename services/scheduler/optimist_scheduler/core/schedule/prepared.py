"""The next decision, computed while the worker computes."""

from optimist_scheduler.core.requests.view import ScheduleView
from optimist_scheduler.core.schedule.decision import ScheduleDecision
from optimist_scheduler.core.schedule.repair import repair
from optimist_scheduler.core.values.stats import SchedulerStats


class Prepared:
    """At most one decision that was computed ahead of results, and what became of all of them."""

    def __init__(self, stats: SchedulerStats) -> None:
        """Begins without one; counts in `stats`."""
        self._stats = stats
        self.decision: ScheduleDecision | None = None

    def keep(self, decision: ScheduleDecision) -> None:
        """Keeps a decision if it has rows and takes blocks away from nobody.

        Results to come may give some back.
        """
        if decision.num_rows == 0:
            return
        self._stats.num_prescheduled += 1
        if len(decision.preempted):
            self._stats.preschedule_discards["preemption"] += 1
        elif decision.rows.is_short:
            self._stats.preschedule_discards["memory"] += 1
        else:
            self.decision = decision

    def take(self, view: ScheduleView) -> ScheduleDecision | None:
        """Returns the decision, repaired where something changed; None if that is in vain.

        Args:
            view: The present state.
        """
        decision, self.decision = self.decision, None
        if decision is None:
            return None
        repaired = repair(view, decision)
        stats = self._stats
        if repaired.decision is None or repaired.decision.num_rows == 0:
            stats.preschedule_discards[repaired.reason or "requests over"] += 1
            return None
        if repaired.is_hit:
            stats.num_preschedule_hits += 1
        else:
            stats.num_preschedule_repairs += 1
        stats.num_prescheduled_rows += decision.num_rows
        stats.num_dropped_rows += repaired.num_dropped
        stats.num_recomputed_rows += repaired.num_recomputed
        stats.num_added_rows += repaired.num_added
        return repaired.decision

    def discard(self, reason: str) -> None:
        """Forgets the decision, if there is one."""
        if self.decision is not None:
            self.decision = None
            self._stats.preschedule_discards[reason] += 1
