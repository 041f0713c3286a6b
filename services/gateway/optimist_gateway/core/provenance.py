"""Where the text of an answer came from."""

from dataclasses import dataclass

from optimist_common.draft_source import DraftSource


@dataclass(frozen=True, slots=True)
class Place:
    """Where tokens of an answer stand in one of the request's predictions."""

    index: int
    """Which prediction of the request's list."""
    start: int
    """Where the place begins: in characters of a text, in tokens of a list of tokens."""
    end: int
    """Where it ends, exclusive."""
    is_in_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens of one forward pass that came from one source, and text that stems from them."""

    run: int
    """Number of the run in its choice; text that was held back comes later under the same one."""
    source: DraftSource
    text: str
    """What of the run's text is new; the texts of a piece's segments join to the piece's text."""
    num_tokens: int
    """How many tokens the run has; 0 if they were told of before and only text comes later."""
    place: Place | None = None
    """Where the tokens stand in a prediction, if that is known."""
