"""What happened to a request by its log, step by step, and what that comes to."""

from dataclasses import asdict, dataclass, field
from typing import Any

from optimist_cli.explain.log import Damage, End, Header, Proposal, Record, Step
from optimist_cli.explain.window import LineIndex, Origin, Window


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one output token and whence it came."""

    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Jump:
    """The position in the predictions was found again, or moved."""

    start: int
    """Position where the output was expected to go on."""
    end: int
    """Position where it is expected to go on now."""
    was_lost: bool
    """Whether the output had something else than what was expected."""


@dataclass(slots=True)
class StepStory:
    """One step."""

    number: int
    replica: str
    position: int
    pieces: list[Piece]
    proposal: Proposal | None
    """None if what was proposed before holds still."""
    microseconds: float
    num_missing: int = 0
    """Output tokens before these that the log does not have."""
    num_repeated: int = 0
    """Tokens that an earlier step of the log has too."""
    num_replayed: int = 0
    """Tokens that the replica did not observe but read where requests are kept, to take over."""
    lost: int | None = None
    """Position that was expected where the output has something else; None if it has not."""
    num_contradicted: int = 0
    """Proposed tokens that the output has something else in place of."""
    has_turned: bool = False
    """Whether the output took another branch than the likeliest."""
    line_prefix: str = ""
    """The output's last line so far."""
    jump: Jump | None = None
    num_left: int = 0
    """Proposed tokens that the output can still come to."""


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


class Story:
    """Takes the records of a log one after the other."""

    def __init__(self) -> None:
        self.lines = LineIndex([])
        self.summary = Summary()
        self._line_indices: dict[str, LineIndex] = {}
        self._window: Window | None = None
        self._expected_position: int | None = None
        self._is_lost = False
        self._num_known = self._num_alignments_before = 0
        self._newest_replica: str | None = None
        self._times: list[float] = []

    def take(self, record: Record) -> StepStory | None:
        """Takes the next record; returns the step that it is about, if it is about one."""
        self.summary.end = record.end if isinstance(record, End) else None
        if isinstance(record, Step):
            return self._step(record)
        if isinstance(record, Header):
            self._begin(record)
        elif isinstance(record, Damage):
            self.summary.damaged_documents += 1
        return None

    def finish(self) -> Summary:
        """Returns what all steps come to."""
        self.summary.conclude(self._times)
        return self.summary

    def _begin(self, header: Header) -> None:
        summary = self.summary
        summary.request_id = header.request_id
        self._note_replica(header.replica)
        self._newest_replica = header.replica
        if header.predictions is not None:
            # Other sources are another request, with its output from the first token on.
            self._window = self._expected_position = None
            self._is_lost, self._num_known = False, 0
            self._num_alignments_before = summary.alignments
            self._line_indices[header.sources] = LineIndex(
                header.predictions, header.num_prompt_tokens or 0
            )
            summary.num_predictions = len(header.predictions)
            summary.num_predicted_lines = sum(item.num_lines for item in header.predictions)
            summary.num_predicted_tokens = sum(item.num_tokens for item in header.predictions)
            summary.num_prompt_tokens = header.num_prompt_tokens or 0
        self.lines = self._line_indices.get(header.sources, LineIndex([]))

    def _note_replica(self, replica: str) -> None:
        if replica not in self.summary.replicas:
            self.summary.replicas.append(replica)

    def _step(self, step: Step) -> StepStory:
        self._note_replica(step.replica)
        token_ids, texts = step.token_ids, step.texts
        num_repeated = min(max(self._num_known - step.position, 0), len(token_ids))
        story = StepStory(
            number=step.step,
            replica=step.replica,
            position=step.position,
            pieces=[],
            proposal=step.proposal,
            microseconds=step.microseconds,
            line_prefix=step.line_prefix,
            num_missing=max(step.position - self._num_known, 0),
            num_repeated=num_repeated,
        )
        if step.replica == self._newest_replica:
            # Whoever opens a request proposes first; who takes one over reads its output first.
            if step.proposal is None:
                story.num_replayed = len(token_ids) - num_repeated
            self._newest_replica = None
        if story.num_missing or story.num_replayed:
            self._window = None
        self._num_known = max(self._num_known, step.position + len(token_ids))
        if not story.num_replayed:
            self._take(story, token_ids[num_repeated:], texts[num_repeated:])
        # A proposal for less than what is known was late, and never in force.
        if step.proposal is not None and step.position + len(token_ids) == self._num_known:
            self._propose(story, step.proposal)
        story.num_left = self._window.num_left if self._window else 0
        # The count depends on the output alone, so that replicas agree about it.
        num_alignments = self._num_alignments_before + step.num_alignments
        self.summary.alignments = max(self.summary.alignments, num_alignments)
        self._count(story)
        return story

    def _take(self, story: StepStory, token_ids: list[int], texts: list[str]) -> None:
        window = self._window
        if window is not None:
            contradicted, turns = window.num_contradicted, window.num_turns
        for index, (token_id, text) in enumerate(zip(token_ids, texts, strict=True)):
            origin = Origin.MODEL
            if window is not None:
                was_left = window.is_left
                origin = window.take(token_id)
                if window.expected_position is not None:
                    self._expected_position = window.expected_position
                if window.is_left and not was_left:
                    self._is_lost = True
                    story.lost = window.expected_position
            # A pass ends with a token of the model's own, also where it is as proposed.
            is_last = index == len(token_ids) - 1
            story.pieces.append(Piece(text, Origin.MODEL if is_last else origin))
        if window is not None:
            story.num_contradicted = window.num_contradicted - contradicted
            story.has_turned = window.num_turns > turns

    def _propose(self, story: StepStory, proposal: Proposal) -> None:
        self._window = window = Window(proposal)
        self.summary.windows += 1
        start, expected = window.start, self._expected_position
        if start is None:
            return
        if expected is not None:
            # Learned renames come before it; as much of the prediction may be left out.
            reach = self.lines.line(expected + window.num_before_start)
            goes_on = start == expected or (
                window.num_before_start > 0 and start > expected and self.lines.line(start) <= reach
            )
            if self._is_lost or not goes_on:
                story.jump = Jump(expected, start, self._is_lost)
        self._is_lost = False
        self._expected_position = start

    def _count(self, story: StepStory) -> None:
        summary = self.summary
        if not story.num_replayed:
            self._times.append(story.microseconds)
        origins = [piece.origin for piece in story.pieces]
        summary.steps += bool(origins)
        summary.output_tokens += len(origins)
        summary.accepted_from_prediction += origins.count(Origin.PREDICTION)
        summary.accepted_from_prompt += origins.count(Origin.PROMPT)
        summary.accepted_from_own_text += origins.count(Origin.OWN_TEXT)
        summary.contradicted_tokens += story.num_contradicted
        summary.missing_tokens += story.num_missing + story.num_replayed
        if story.jump is not None:
            summary.jumps[self.direction(story.jump)] += 1

    def direction(self, jump: Jump) -> str:
        """Returns whether a jump leads forward, back or to the same_line."""
        start, end = self.lines.line(jump.start), self.lines.line(jump.end)
        if start == end:
            return "same_line"
        return "forward" if end > start else "back"


def _percentile(values: list[float], percent: int) -> float:
    """Returns a percentile of sorted values, the nearest of them; 0 if there are none."""
    if not values:
        return 0.0
    return values[min(-(-len(values) * percent // 100), len(values)) - 1]
