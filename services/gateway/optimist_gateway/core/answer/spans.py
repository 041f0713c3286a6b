"""Where tokens of the predictions and of the prompt are in what the client sent."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf
from operator import add, attrgetter

from optimist_gateway.core.answer.thinking import ThinkingReader

NOT_PREDICTED = -1
"""Position of a draft that is in no prediction."""


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """Where tokens of an answer stand in one of the request's predictions, or in its prompt."""

    index: int | None
    """Which prediction of the request's list, or which message of its conversation; None in a
    prompt that is none, and for what is in no message."""
    start: int
    """Where the span begins: in characters of a text, in tokens of a list of tokens."""
    end: int
    """Where it ends, exclusive."""
    is_in_tokens: bool = False
    is_in_prompt: bool = False


@dataclass(frozen=True, slots=True)
class SentPrediction:
    """One prediction of a request, as it is sent to the scheduler."""

    index: int
    """Which one of the request's list it is."""
    token_ids: list[int]
    spans: list[tuple[int, int]] | None = None
    """The characters of its text, as the client sent it, of each token that is the client's,
    `[num_tokens]`; None if it was given as tokens, or if nobody asks."""
    num_added: int = 0
    """How many of its tokens, from the front, are not the client's: with these thoughts end."""


def joined_spans(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the characters of each token so that none is left out and none is there twice.

    Tokenizers may leave the spaces of a token out of its span, and give each of the tokens that
    make up a character the whole of it. Here the last of these has it, `[num_tokens]`, as in the
    text of an answer, where a character appears with its last byte; those before it have none.
    """
    ends: list[int] = []
    following: float = inf
    for start, end in reversed(spans):
        # Special tokens that are not in the text have no characters, and begin nowhere.
        ends.append(min(end, int(following)) if following < end else end)
        if start < end:
            following = min(following, start)
    ends.append(0)
    return list(pairwise(accumulate(reversed(ends), max)))


class PredictionSpans:
    """Turns positions in all predictions, one after the other, into spans."""

    def __init__(self, predictions: Sequence[SentPrediction]) -> None:
        """Takes the predictions in the order in which they are sent."""
        self._predictions = predictions
        lengths = (len(prediction.token_ids) for prediction in predictions)
        self._starts = list(accumulate(lengths, initial=0))
        added = (one.num_added for one in predictions)
        self._begins = {*self._starts, *map(add, self._starts, added)}

    def is_next(self, position: int, following: int) -> bool:
        """Returns whether one position follows another in the same prediction."""
        return position >= 0 and following == position + 1 and following not in self._begins

    def find_span(self, first: int, num_tokens: int) -> SourceSpan | None:
        """Returns where tokens from a position on stand; None if they stand in no prediction."""
        number = bisect_right(self._starts, first) - 1
        if first < 0 or number >= len(self._predictions):
            return None
        prediction = self._predictions[number]
        start = first - self._starts[number] - prediction.num_added
        end = min(start + num_tokens, len(prediction.token_ids) - prediction.num_added)
        if start < 0:
            return None
        if prediction.spans is None:
            return SourceSpan(prediction.index, start, end, is_in_tokens=True)
        return SourceSpan(
            prediction.index, prediction.spans[start][0], prediction.spans[end - 1][1]
        )


NOT_PROMPTED = 0
"""Position of a draft that was not read from the prompt."""
_MOST_MISSES = 64
"""Each takes a search through the whole prompt, in which other requests wait."""


@dataclass(frozen=True, slots=True)
class SentText:
    """A text of the client's in the text of a prompt."""

    message: int | None
    """Which message of the conversation has it; None if it is the whole prompt."""
    start: int
    """Where it begins, in characters of the prompt."""
    end: int
    """Where it ends, exclusive."""
    num_left_out: int = 0
    """How many of its characters, from the front, the prompt lacks."""


def find_contents(text: str, contents: Sequence[str]) -> list[SentText]:
    """Returns where the contents of messages stand in the prompt that was made of them.

    They are looked for one after the other; without the spaces around them, where a template drops
    these. Those that it writes in another form are left out.
    """
    found: list[SentText] = []
    cursor = num_misses = 0
    for index, content in enumerate(contents):
        shown = content.strip()
        if not shown:
            continue
        start = text.find(shown, cursor)
        if start < 0:
            # Some templates put the system's message further on.
            start = text.find(shown)
        if start < 0:
            num_misses += 1
            if num_misses == _MOST_MISSES:
                break
            continue
        num_spaces = len(content) - len(content.lstrip())
        begin = start - num_spaces
        if begin >= 0 and text.startswith(content, begin):
            found.append(SentText(index, begin, begin + len(content)))
        else:
            found.append(SentText(index, start, start + len(shown), num_spaces))
        cursor = found[-1].end
    return found


@dataclass(slots=True, eq=False)
class PromptSpans:
    """Turns positions in a prompt, counted from its end, into spans."""

    num_tokens: int
    spans: Sequence[tuple[int, int]] = ()
    """The characters of its text of each token, `[num_tokens]`; empty if it was given as tokens."""
    texts: Sequence[SentText] = ()
    """What of its text the client sent."""
    _starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.texts = sorted(self.texts, key=attrgetter("start"))
        self._starts = [one.start for one in self.texts]

    def is_next(self, position: int, following: int) -> bool:
        """Returns whether one position follows another in the same text of the client's."""
        return (
            NOT_PROMPTED < following == position - 1
            and position <= self.num_tokens
            and self._text(position) is self._text(following)
        )

    def find_span(self, first: int, num_tokens: int) -> SourceSpan | None:
        """Returns where tokens from a position on stand; None if they stand not in the prompt."""
        if not NOT_PROMPTED < first <= self.num_tokens:
            return None
        start = self.num_tokens - first
        end = min(start + num_tokens, self.num_tokens)
        text = self._text(first)
        if text is None:
            return SourceSpan(None, start, end, is_in_tokens=True, is_in_prompt=True)
        offset = text.num_left_out - text.start
        first_character = max(self.spans[start][0], text.start)
        last_character = min(self.spans[end - 1][1], text.end)
        return SourceSpan(
            text.message, first_character + offset, last_character + offset, is_in_prompt=True
        )

    def _text(self, position: int) -> SentText | None:
        """Returns the text of which a token has characters."""
        if not self.spans:
            return None
        # A token that ends within a character has none: it stands where that one does.
        start, end = self.spans[self.num_tokens - position]
        number = bisect_right(self._starts, max(end - 1, start)) - 1
        if number < 0 or self.texts[number].end <= start:
            return None
        return self.texts[number]


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it: what an answer continues."""

    token_ids: list[int]
    text: str = ""
    """What an answer shows that begins with it."""
    spans: PromptSpans | None = None
    """Where its tokens are in what the client sent; None if that is tokens, or if nobody asks."""
    end_ids: Collection[int] = ()
    """Tokens that end an answer to it, beside the model's own."""
    thinking: ThinkingReader | None = None
    """Reads what the model thinks before it answers, from where the prompt ends; None: nothing."""
