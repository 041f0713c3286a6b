"""Where tokens of the prompt stand in what the client sent."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from optimist_gateway.core.prediction_places import Place

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

    Args:
        text: The prompt.
        contents: The content of each message.
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


class PromptPlaces:
    """Turns positions in a prompt, counted from its end, into places."""

    def __init__(
        self, num_tokens: int, spans: Sequence[tuple[int, int]] = (), texts: Sequence[SentText] = ()
    ) -> None:
        """Takes a prompt.

        Args:
            num_tokens: Its length.
            spans: The characters of its text that each token stands for, `[num_tokens]`; empty if
                it was given as tokens.
            texts: What of its text the client sent.
        """
        self._num_tokens = num_tokens
        self._spans = spans
        self._texts = sorted(texts, key=attrgetter("start"))
        self._starts = [one.start for one in self._texts]

    def is_next(self, position: int, following: int) -> bool:
        """Tells whether one position follows another in the same text of the client's."""
        return (
            NOT_PROMPTED < following == position - 1
            and position <= self._num_tokens
            and self._text(position) is self._text(following)
        )

    def place(self, first: int, num_tokens: int) -> Place | None:
        """Returns where tokens from a position on stand; None if they stand not in the prompt."""
        if not NOT_PROMPTED < first <= self._num_tokens:
            return None
        start = self._num_tokens - first
        end = min(start + num_tokens, self._num_tokens)
        text = self._text(first)
        if text is None:
            return Place(None, start, end, is_in_tokens=True, is_in_prompt=True)
        offset = text.num_left_out - text.start
        first_character = max(self._spans[start][0], text.start)
        last_character = min(self._spans[end - 1][1], text.end)
        return Place(
            text.message, first_character + offset, last_character + offset, is_in_prompt=True
        )

    def _text(self, position: int) -> SentText | None:
        """Returns the text of which a token has characters."""
        if not self._spans:
            return None
        start, end = self._spans[self._num_tokens - position]
        # A token that ends within a character has none: it stands where the one before it does.
        start = min(start, max(end - 1, 0))
        number = bisect_right(self._starts, max(end - 1, start)) - 1
        if number < 0 or self._texts[number].end <= start:
            return None
        return self._texts[number]


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it: what an answer continues."""

    token_ids: list[int]
    text: str | None = None
    """What the client sent, if it sent text and may ask for it back."""
    places: PromptPlaces | None = None
    """Where its tokens are in what the client sent; None if that is tokens, or if nobody asks."""
