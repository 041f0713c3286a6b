"""Text of tokens as they arrive, and the strings that end it."""

from codecs import utf_8_decode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# Tokens that may wait for the rest of a character. A character has at most four bytes, so more
# than this wait only if the model writes bytes that are no text.
MAX_PENDING_TOKENS = 16
# An incomplete character at the end of a text is decided by its last three bytes, so the last
# four tokens decode to the same ending as all tokens do.
_RESYNC_TOKENS = 4


@dataclass(slots=True, eq=False)
class Detokenizer:
    """Turns one answer's tokens into text whose pieces join to the decoded whole.

    Half a character is never returned: an ending that decodes to U+FFFD waits until more tokens
    tell. Each new piece is decoded after the tokens of the piece before it, because the text of a
    token may depend on what precedes it (a word's leading space, the first bytes of a character);
    this is the prefix and read offset method of text-generation-inference and vLLM. The cost of a
    token is bounded by `MAX_PENDING_TOKENS` and the tokens pushed with it.

    The joined text equals the decoded whole for byte-level vocabularies whatever the tokens are,
    and for byte-fallback vocabularies if the bytes are text.
    """

    decode: Callable[[Sequence[int]], str]
    """Decodes a list of token ids without cleaning up spaces."""
    skipped_token_ids: Collection[int]
    """Special tokens, which have no text."""
    vocabulary: Mapping[int, tuple[str, bytes]] | None = None
    """The text and the bytes of each token, if the decoded whole has the bytes of all, one after
    the other; None for other vocabularies."""
    before: Sequence[int] = ()
    """Tokens that the answer follows: the first one's text may depend on them, too."""
    _bytes: bytes = field(init=False, default=b"")
    """The beginning of a character."""
    _context: Sequence[int] = field(init=False, default=())
    _context_length: int = field(init=False, default=0)
    """How many characters of the decoded context were returned."""
    _pending: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Begins behind the tokens that the answer follows."""
        if self.vocabulary is None and self.before:
            self._context = self.before[-_RESYNC_TOKENS:]
            self._context_length = len(self.decode(self._context))

    def push(self, token_ids: Sequence[int]) -> str:
        """Adds tokens and returns the new text, possibly none."""
        if self.vocabulary is not None and not self._bytes and len(token_ids) == 1:
            # Most steps bring one token, which is text.
            token = token_ids[0]
            text, _ = self.vocabulary[token]
            if REPLACEMENT not in text and token not in self.skipped_token_ids:
                return text
        visible = [token for token in token_ids if token not in self.skipped_token_ids]
        if self.vocabulary is not None:
            return self._decode_bytes([self.vocabulary[token][1] for token in visible])
        if not visible:
            return ""
        text = self.decode([*self._context, *self._pending, *visible])
        if not text.endswith(REPLACEMENT):
            self._pending += visible
            return self._take(text)
        return "".join([self._push_one(token) for token in visible])

    def flush(self) -> str:
        """Returns the text that still waits, as no more tokens will come."""
        if self.vocabulary is not None:
            return self._decode_bytes([], is_last=True)
        return self._take(self.decode([*self._context, *self._pending]))

    def _decode_bytes(self, pieces: Sequence[bytes], *, is_last: bool = False) -> str:
        data = b"".join([self._bytes, *pieces])
        text, length = utf_8_decode(data, "replace", is_last)
        self._bytes = data[length:]
        return text

    def _push_one(self, token: int) -> str:
        self._pending.append(token)
        text = self.decode([*self._context, *self._pending])
        if not text.endswith(REPLACEMENT):
            return self._take(text)
        if len(self._pending) < MAX_PENDING_TOKENS:
            return ""
        new = text[self._context_length : -1]
        self._context, self._pending = self._pending[-_RESYNC_TOKENS:], []
        self._context_length = len(self.decode(self._context)) - 1
        return new

    def _take(self, text: str) -> str:
        """Returns the new end of the decoded context and pending tokens.

        They become the next context once they have any text of their own.
        """
        new = text[self._context_length :]
        if new or len(self._pending) >= MAX_PENDING_TOKENS:
            self._context, self._pending = self._pending or self._context, []
            self._context_length = len(self.decode(self._context))
        return new


class StopStrings:
    """Passes text on up to the first stop string.

    Text is held back only as long as it could be the beginning of a stop string.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        """Takes the stop strings, none of them empty."""
        self._stop = tuple(stop)
        self._held = ""
        self.found = False
        """Whether a stop string was seen; all later text is dropped."""

    def push(self, text: str) -> str:
        """Adds text; returns what of all text so far is new and certain to precede any stop."""
        if self.found or not text:
            return ""
        held = self._held + text
        positions = [start for stop in self._stop if (start := held.find(stop)) >= 0]
        if positions:
            self.found = True
            self._held = ""
            return held[: min(positions)]
        cut = len(held) - max((overlap(held, stop) for stop in self._stop), default=0)
        self._held = held[cut:]
        return held[:cut]

    def flush(self) -> str:
        """Returns the text that is still held back, as no more will come."""
        held, self._held = self._held, ""
        return held


def find_marker(text: str, marker: str) -> tuple[int, bool]:
    """Returns up to where a text surely precedes a marker, and whether the marker is there."""
    start = text.find(marker)
    return (start, True) if start >= 0 else (len(text) - overlap(text, marker), False)


def overlap(text: str, marker: str) -> int:
    """Returns the length of the longest end of a text that begins a marker and is shorter."""
    start = text.find(marker[0], max(0, len(text) - len(marker) + 1))
    while start >= 0 and not marker.startswith(text[start:]):
        start = text.find(marker[0], start + 1)
    return len(text) - start if start >= 0 else 0
