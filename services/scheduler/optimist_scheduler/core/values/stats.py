"""What the scheduler counts."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SchedulerStats:
    """Totals since the start; they outlive the worker."""

    num_plans: int = 0
    num_results: int = 0
    """Results that were settled, repeats included."""
    num_repeats: int = 0
    """Results of repeated runs of a plan."""
    num_late_results: int = 0
    """Results that had been settled already."""
    num_prescheduled: int = 0
    """Decisions that were computed ahead of a result and kept."""
    num_preschedule_hits: int = 0
    """Of them, sent as they were."""
    num_preschedule_repairs: int = 0
    """Of them, sent with some rows dropped, computed again or added."""
    preschedule_discards: Counter[str] = field(default_factory=Counter)
    """Decisions computed ahead and thrown away, by reason."""
    num_prescheduled_rows: int = 0
    """Rows of decisions that were sent, hits and repairs."""
    num_dropped_rows: int = 0
    """Of them, rows whose request was over."""
    num_recomputed_rows: int = 0
    """Of them, rows that were computed again."""
    num_added_rows: int = 0
    """Rows of requests that were admitted by a repair."""
    num_preemptions: int = 0
    num_starved: int = 0
    """Requests that went first because later ones had overtaken them for too long."""
    num_rested: int = 0
    """Times a request that was followed in vain came to rest."""
    num_woken: int = 0
    """Times a window woke one."""
    num_prefix_queries: int = 0
    """Tokens of admitted requests that were looked up in the prefix cache."""
    num_prefix_hits: int = 0
    """Of them, tokens that it held."""
