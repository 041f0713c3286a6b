"""Where the text of an answer came from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optimist_common.drafts import DraftSource
from optimist_gateway.core.answer.output import StepOutput
from optimist_gateway.core.answer.spans import (
    NOT_PREDICTED,
    NOT_PROMPTED,
    PredictionSpans,
    PromptSpans,
    SourceSpan,
)

PROMPT_RUN = -1
"""Number of the run that an echoed prompt is."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens of one forward pass that came from one source, and text that stems from them."""

    run: int
    """Number of the run in its choice; text that was held back comes later under the same one."""
    source: DraftSource | None
    """None for an echoed prompt."""
    text: str
    """What of the run's text is new; the texts of a piece's segments join to the piece's text."""
    num_tokens: int
    """How many tokens the run has; 0 if they came before and only text comes later."""
    span: SourceSpan | None = None
    """Where the tokens stand in a prediction or in the prompt, if that is known."""


class Provenance:
    """Splits the text of one answer by where its tokens came from.

    Text leaves an answer later than its tokens arrive, as it may be half a character or the
    beginning of a stop string; but it leaves in order, so it is enough to count the characters that
    each run of tokens has still to come.
    """

    def __init__(self, spans: PredictionSpans, prompt: PromptSpans) -> None:
        self._spans = spans
        self._prompt = prompt
        self._waiting: list[tuple[Segment, int]] = []
        """Runs, each with the number of its characters that are still to come."""
        self._last: Segment | None = None
        self._num_runs = 0

    def push(
        self, output: StepOutput, num_tokens: int, lengths: Sequence[int], text: str
    ) -> list[Segment]:
        """Adds a step, of which so many tokens are part of the answer; returns its segments.

        The lengths are as in `LogprobReader.read`. The text of the piece begins with what was held
        back before.
        """
        start = 0
        for run in self._runs(output, num_tokens):
            end = start + run.num_tokens
            self._waiting.append((run, sum(lengths[start:end])))
            start = end
        segments = []
        waiting, self._waiting = self._waiting, []
        for run, length in waiting:
            shown, text = text[:length], text[length:]
            if shown or run.num_tokens:
                segments.append(replace(run, text=shown))
            if len(shown) < length:
                later = replace(run, num_tokens=0, span=None)
                self._waiting.append((later, length - len(shown)))
        if segments:
            self._last = segments[-1]
        # What the last token left unfinished comes at the end of the answer.
        if text and self._last is not None:
            if segments:
                segments[-1] = replace(segments[-1], text=segments[-1].text + text)
            else:
                segments = [replace(self._last, text=text, num_tokens=0, span=None)]
        return segments

    def _runs(self, output: StepOutput, num_tokens: int) -> list[Segment]:
        """Returns the runs of a step, still without text."""
        num_accepted = min(output.num_accepted_tokens, num_tokens)
        runs = []
        start = 0
        for end in range(1, num_accepted + 1):
            is_same = end != output.num_base_tokens
            if end < num_accepted and is_same and self._goes_on(output, end):
                continue
            runs.append(self._run(output, start, end))
            start = end
        if num_accepted < num_tokens:
            runs.append(self._segment(DraftSource.TARGET, num_tokens - num_accepted, None))
        return runs

    def _goes_on(self, output: StepOutput, index: int) -> bool:
        """Returns whether an accepted draft belongs to the run of the one before it."""
        if output.prediction_positions is None:
            return True
        before, here = output.prediction_positions[index - 1 : index + 1]
        if not before == here == NOT_PREDICTED:
            return self._spans.is_next(before, here)
        if output.prompt_positions is None:
            return True
        before, here = output.prompt_positions[index - 1 : index + 1]
        return before == here == NOT_PROMPTED or self._prompt.is_next(before, here)

    def _run(self, output: StepOutput, start: int, end: int) -> Segment:
        source, span = output.draft_source, None
        if start >= output.num_base_tokens:
            source = DraftSource.FORM
        elif output.prediction_positions is not None:
            position = output.prediction_positions[start]
            span = self._spans.find_span(position, end - start)
            if source is DraftSource.PREDICTION and position == NOT_PREDICTED:
                # Proposed from the request's own text; the usage counts it so too.
                source = DraftSource.NGRAM
                if output.prompt_positions is not None:
                    span = self._prompt.find_span(output.prompt_positions[start], end - start)
        return self._segment(source, end - start, span)

    def _segment(self, source: DraftSource, num_tokens: int, span: SourceSpan | None) -> Segment:
        self._num_runs += 1
        return Segment(self._num_runs - 1, source, "", num_tokens, span)


def join_segments(segments: Sequence[Segment]) -> list[Segment]:
    """Returns the segments of a whole answer: runs that go on where another ended are one."""
    runs: dict[int, Segment] = {}
    for segment in segments:
        run = runs.get(segment.run)
        runs[segment.run] = segment if run is None else replace(run, text=run.text + segment.text)
    joined: list[Segment] = []
    for run in runs.values():
        merged = _merged(joined[-1], run) if joined else None
        if merged is None:
            joined.append(run)
        else:
            joined[-1] = merged
    return joined


def _merged(segment: Segment, other: Segment) -> Segment | None:
    """Returns two segments as one; None if the other does not go on where the first one ends."""
    span, goes_on = segment.span, segment.span is other.span
    if span is not None and other.span is not None:
        goes_on = replace(span, start=span.end, end=other.span.end) == other.span
        span = replace(span, end=other.span.end)
    if segment.source is not other.source or not goes_on:
        return None
    num_tokens = segment.num_tokens + other.num_tokens
    return replace(segment, text=segment.text + other.text, num_tokens=num_tokens, span=span)
