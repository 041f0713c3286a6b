"""What a request's log comes to."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Summary:
    """What a log comes to."""

    request_id: str = ""
    replicas: list[str] = field(default_factory=list)
    num_predictions: int = 0
    num_predicted_lines: int = 0
    num_predicted_tokens: int = 0
    num_prompt_tokens: int = 0
    steps: int = 0
    """Steps with output tokens."""
    output_tokens: int = 0
    tokens_per_step: float = 0.0
    accepted_from_prediction: int = 0
    accepted_from_prompt: int = 0
    accepted_from_own_text: int = 0
    accepted_share: float = 0.0
    """Accepted drafts of all output tokens."""
    windows: int = 0
    contradicted_tokens: int = 0
    """Proposed tokens that the output has something else in place of."""
    wasted_per_accepted: float | None = None
    """Contradicted tokens for each accepted one; None if none was accepted."""
    alignments: int = 0
    """How often the position in the predictions was searched for."""
    jumps: dict[str, int] = field(default_factory=lambda: {"forward": 0, "back": 0, "same_line": 0})
    proposer_us: dict[str, float] = field(default_factory=lambda: {"p50": 0.0, "p99": 0.0})
    missing_tokens: int = 0
    """Output tokens of passes that the log does not have."""
    damaged_documents: int = 0
    end: str | None = None
    """Why the log ends; None if the last record is another one."""

    @property
    def accepted(self) -> int:
        """Accepted drafts, wherever they came from."""
        by_source = self.accepted_from_prediction, self.accepted_from_prompt
        return sum(by_source) + self.accepted_from_own_text

    def conclude(self, times: list[float]) -> None:
        """Works out the ratios and, of times in microseconds, the percentiles."""
        accepted = self.accepted
        self.tokens_per_step = round(self.output_tokens / max(self.steps, 1), 3)
        self.accepted_share = round(accepted / max(self.output_tokens, 1), 4)
        if accepted:
            self.wasted_per_accepted = round(self.contradicted_tokens / accepted, 3)
        times = sorted(times)
        self.proposer_us = {"p50": _percentile(times, 50), "p99": _percentile(times, 99)}

    def values(self) -> dict[str, Any]:
        """Returns everything by name."""
        return asdict(self)


def _percentile(values: list[float], percent: int) -> float:
    """Returns a percentile of sorted values, the nearest of them; 0 if there are none."""
    if not values:
        return 0.0
    return values[min(-(-len(values) * percent // 100), len(values)) - 1]
