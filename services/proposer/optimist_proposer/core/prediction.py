"""A prediction, split into lines and ready to be searched for a line."""

from array import array
from collections.abc import Sequence, Set

from optimist_proposer.core.lines import INT32, line_starts


class Prediction:
    """The predicted tokens of one request; does not change.

    Attributes:
        token_ids: The tokens, [num_tokens].
        identities: The number of the first line that is equal, for each line, [num_lines].
        line_starts: Where each line starts, and the end of the last, [num_lines + 1].
        num_complete_lines: Lines that end with a newline: all, or all but the last.
        longest_line: Number of tokens of the longest line.
    """

    __slots__ = (
        "_numbers",
        "_positions",
        "_repeated",
        "identities",
        "line_starts",
        "longest_line",
        "num_complete_lines",
        "token_ids",
    )

    def __init__(self, token_ids: "array[int]", newline_token_ids: Set[int]) -> None:
        self.token_ids = token_ids
        self.line_starts = starts = line_starts(token_ids, newline_token_ids)
        open_end = len(token_ids) > 0 and token_ids[-1] not in newline_token_ids
        self.num_complete_lines = len(starts) - 1 - open_end
        self.longest_line = 0
        # Flat containers and few: the garbage collector walks those of all requests.
        self._numbers: dict[bytes, int] = {}
        self.identities = array(INT32)
        self._repeated: dict[int, list[int]] = {}
        self._positions: dict[int, array[int]] = {}
        for number in range(len(starts) - 1):
            line = token_ids[starts[number] : starts[number + 1]]
            self.longest_line = max(self.longest_line, len(line))
            first = self._numbers.setdefault(line.tobytes(), number)
            self.identities.append(first)
            if first != number:
                self._repeated.setdefault(first, [first]).append(number)

    @property
    def num_bytes(self) -> int:
        """Memory it takes, in bytes, roughly."""
        return 1024 + 8 * len(self.token_ids) + 150 * len(self.identities)

    def find(self, line: "array[int]") -> Sequence[int]:
        """Returns the numbers of the predicted lines equal to `line`, ascending."""
        first = self._numbers.get(line.tobytes())
        return () if first is None else self._repeated.get(first, (first,))

    def positions(self, token_id: int) -> "array[int]":
        """Returns where a token occurs, ascending; the first call takes time for all tokens."""
        if not self._positions:
            for position, token in enumerate(self.token_ids):
                self._positions.setdefault(token, array(INT32)).append(position)
        return self._positions.get(token_id, array(INT32))
