"""What a scheduler asks of one step, and what comes of it, as plain values."""

from dataclasses import dataclass, field

from optimist_common.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that takes a slot with an empty block table."""

    slot: int
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class WindowUpdate:
    """A draft window that replaces the one of its slot."""

    slot: int
    base: int
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A slot to run: known tokens to feed, most drafts behind them, blocks it is given first."""

    slot: int
    num_known_tokens: int
    num_draft_tokens: int
    new_blocks: list[int]


@dataclass(frozen=True, slots=True)
class Plan:
    """One step; its parts are applied in the order of the fields."""

    sequence: int
    released_slots: list[int] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    windows: list[WindowUpdate] = field(default_factory=list)
    rows: list[PlannedRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RowResult:
    """What became of one row: its absolute length, and the tokens that are new."""

    slot: int
    length: int
    token_ids: list[int]
    num_drafted_tokens: int
    num_accepted_tokens: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The rows of a plan in the plan's order; `num_tokens` counts what the pass was fed."""

    sequence: int
    rows: list[RowResult]
    num_tokens: int


class PlanError(ValueError):
    """A plan that breaks the contract; the text names the field."""
