"""What a request's log tells, step by step, and what it comes to in the end."""

from bisect import bisect_right
from dataclasses import asdict, dataclass, field
from typing import Any

from optimist_cli.explain_log import Damage, Document, End, Header, Prediction, Proposal, Step
from optimist_cli.explain_window import Origin, Window


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one output token and whence it came."""

    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Jump:
    """The place in the predictions was found again, or moved."""

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
    accepted_from_own_text: int = 0
    accepted_share: float = 0.0
    """Accepted drafts of all output tokens."""
    windows: int = 0
    contradicted_tokens: int = 0
    """Proposed tokens that the output has something else in place of."""
    wasted_per_accepted: float | None = None
    """Contradicted tokens for each accepted one; None if none was accepted."""
    jumps: dict[str, int] = field(default_factory=lambda: {"forward": 0, "back": 0, "same_line": 0})
    proposer_us: dict[str, float] = field(default_factory=lambda: {"p50": 0.0, "p99": 0.0})
    missing_tokens: int = 0
    """Output tokens that the log does not have."""
    damaged_documents: int = 0
    end: str | None = None
    """Why the log ends; None if the last document is another one."""

    def values(self) -> dict[str, Any]:
        """Returns everything by name."""
        return asdict(self)


class LineIndex:
    """Names the lines of predictions."""

    def __init__(self, predictions: list[Prediction]) -> None:
        lines = [
            (line.position, number, line.number)
            for number, prediction in enumerate(predictions, 1)
            for line in prediction.lines
        ]
        lines.sort()
        self._lines = lines
        self._starts = [line[0] for line in lines]
        self._is_single = len(predictions) < 2
        self._total = predictions[0].num_lines if len(predictions) == 1 else 0
        self._num_tokens = sum(prediction.num_tokens for prediction in predictions)

    def line(self, position: int) -> tuple[int, int]:
        """Returns prediction and line of a position, both from 1 on; 0 if unknown."""
        index = bisect_right(self._starts, position) - 1
        return self._lines[index][1:] if index >= 0 else (0, 0)

    def name(self, position: int) -> str:
        """Returns what a position is called."""
        if position >= self._num_tokens:
            return "the end"
        return self.line_name(*self.line(position))

    def line_name(self, prediction: int, line: int, *, with_total: bool = False) -> str:
        """Returns what a line is called."""
        if not line:
            return "an unknown line"
        total = f" of {self._total}" if with_total and self._total else ""
        return f"line {line}{total}" if self._is_single else f"prediction {prediction}, line {line}"


class Story:
    """Takes the documents of a log one after the other."""

    def __init__(self) -> None:
        self.lines = LineIndex([])
        self.summary = Summary()
        self._line_indices: dict[str, LineIndex] = {}
        self._window: Window | None = None
        self._expected_position: int | None = None
        self._is_lost = False
        self._num_known = 0
        self._times: list[float] = []

    def tell(self, document: Document) -> StepStory | None:
        """Takes the next document; returns the step that it tells of, if it does."""
        self.summary.end = document.end if isinstance(document, End) else None
        if isinstance(document, Step):
            return self._step(document)
        if isinstance(document, Header):
            self._begin(document)
        elif isinstance(document, Damage):
            self.summary.damaged_documents += 1
        return None

    def finish(self) -> Summary:
        """Returns what all steps come to."""
        summary = self.summary
        accepted = summary.accepted_from_prediction + summary.accepted_from_own_text
        summary.tokens_per_step = round(summary.output_tokens / max(summary.steps, 1), 3)
        summary.accepted_share = round(accepted / max(summary.output_tokens, 1), 4)
        if accepted:
            summary.wasted_per_accepted = round(summary.contradicted_tokens / accepted, 3)
        self._times.sort()
        summary.proposer_us = {
            "p50": _percentile(self._times, 50),
            "p99": _percentile(self._times, 99),
        }
        return summary

    def _begin(self, header: Header) -> None:
        summary = self.summary
        summary.request_id = header.request_id
        self._note_replica(header.replica)
        if header.predictions is not None:
            self._line_indices[header.sources] = LineIndex(header.predictions)
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
        token_ids, texts = step.output.token_ids, step.output.texts()
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
        if story.num_missing:
            self._window = None
        self._num_known = max(self._num_known, step.position + len(token_ids))
        self._take(story, token_ids[num_repeated:], texts[num_repeated:])
        # A proposal behind less than what is known was late, and never in force.
        if step.proposal is not None and step.position + len(token_ids) == self._num_known:
            self._propose(story, step.proposal)
        story.num_left = self._window.num_left if self._window else 0
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
        place, expected = window.place, self._expected_position
        if place is None:
            return
        if expected is not None:
            # Learned renames come before the place; as much of the prediction may be left out.
            reach = self.lines.line(expected + window.num_before_place)
            goes_on = place == expected or (
                window.num_before_place > 0 and place > expected and self.lines.line(place) <= reach
            )
            if self._is_lost or not goes_on:
                story.jump = Jump(expected, place, self._is_lost)
        self._is_lost = False
        self._expected_position = place

    def _count(self, story: StepStory) -> None:
        summary = self.summary
        self._times.append(story.microseconds)
        origins = [piece.origin for piece in story.pieces]
        summary.steps += bool(origins)
        summary.output_tokens += len(origins)
        summary.accepted_from_prediction += origins.count(Origin.PREDICTION)
        summary.accepted_from_own_text += origins.count(Origin.OWN_TEXT)
        summary.contradicted_tokens += story.num_contradicted
        summary.missing_tokens += story.num_missing
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
