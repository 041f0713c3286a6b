"""Where in its own earlier text the output stands: code and lists repeat themselves, changed."""

from typing import Final

from optimist_aligner.following.alignment import SURE_RUN
from optimist_aligner.text.context_index import MOST_ORDER, ContextIndex

_NEAR: Final = 6
NOWHERE: Final = -1


class Template:
    """A cursor in the output itself; a fold over the output.

    Attributes:
        offset: Where the next token was said before; NOWHERE if it never was.
        lost_at: Where it was last sure and then lost; `offset` while it is sure.
        num_lost: Tokens since then; 0 while it is sure.
    """

    def __init__(self, text: list[int], index: ContextIndex) -> None:
        """Starts nowhere.

        Args:
            text: What the output is appended to.
            index: Of the output.
        """
        self._text, self._index = text, index
        self._start = len(text)
        self.offset = self.lost_at = NOWHERE
        self._run = self.num_lost = 0

    def advance(self, token_id: int) -> None:
        """Takes the token that was just appended to the text."""
        text = self._text
        if 0 <= self.offset < len(text) - 1 and text[self.offset] == token_id:
            self.offset += 1
            self._run += 1
            if self._run >= SURE_RUN:
                self.lost_at, self.num_lost = self.offset, 0
            elif self.num_lost:
                self.num_lost += 1
            return
        if self._run and not self.num_lost:
            self.lost_at = self.offset
        self._run = 0
        self.num_lost += 1
        self.offset = self._find_offset(token_id)
        self._run = int(self.offset != self.lost_at)

    def leave(self) -> None:
        """Goes nowhere: what the output says is predicted, and needs no template."""
        self.offset = self.lost_at = NOWHERE
        self._run = self.num_lost = 0

    def _find_offset(self, token_id: int) -> int:
        text = self._text
        if len(text) - self._start >= MOST_ORDER:
            offsets = self._index.find(tuple(text[-MOST_ORDER:])).latest(2)
            if len(offsets) > 1:
                return offsets[0]
        if self.lost_at >= 0:
            for offset in range(self.lost_at, min(self.lost_at + _NEAR, len(text) - 1)):
                if text[offset] == token_id:
                    return offset + 1
        return self.lost_at
