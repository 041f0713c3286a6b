"""Predictions split into lines, and ready to be searched for a line."""

from array import array
from collections.abc import Sequence, Set

from optimist_aligner.text.sources import INT32, SEPARATOR, Sources


def line_starts(token_ids: "array[int]", newline_token_ids: Set[int]) -> list[int]:
    """Returns where each line starts, and the end of the last, [num_lines + 1].

    A line includes the token that ends it. Tokens after the last such token are a line of their
    own; no tokens are no line.

    Args:
        token_ids: Tokens, [num_tokens].
        newline_token_ids: The tokens that end a line.
    """
    starts = [0]
    starts.extend(
        position
        for position, token_id in enumerate(token_ids, start=1)
        if token_id in newline_token_ids
    )
    if starts[-1] != len(token_ids):
        starts.append(len(token_ids))
    return starts


def end_of_line(token_ids: "array[int]", start: int, newline_token_ids: Set[int]) -> int:
    """Returns the position after the first token from `start` on that ends a line; -1 if none."""
    for position in range(start, len(token_ids)):
        if token_ids[position] in newline_token_ids:
            return position + 1
    return -1


class LineIndex:
    """The lines of all predictions, one after the other; does not change.

    A separator ends a line as a newline does. So the last line of a prediction that does not end
    with a newline equals no line of the output, which has no separators.

    Attributes:
        identities: The number of the first line that is equal, for each line [num_lines].
        starts: Place where each line starts, and the end of the last [num_lines + 1].
        longest_line: Number of tokens of the longest line.
    """

    __slots__ = ("_numbers", "_repeated", "identities", "longest_line", "starts")

    def __init__(self, sources: Sources, newline_token_ids: Set[int]) -> None:
        predicted = sources.token_ids[: sources.num_predicted]
        self.starts = array(INT32, line_starts(predicted, newline_token_ids | {SEPARATOR}))
        self.longest_line = 0
        # Flat containers and few: the garbage collector walks those of all requests.
        self._numbers: dict[bytes, int] = {}
        self.identities = array(INT32)
        self._repeated: dict[int, array[int]] = {}
        for number in range(len(self.starts) - 1):
            line = predicted[self.starts[number] : self.starts[number + 1]]
            self.longest_line = max(self.longest_line, len(line))
            first = self._numbers.setdefault(line.tobytes(), number)
            self.identities.append(first)
            if first != number:
                self._repeated.setdefault(first, array(INT32, [first])).append(number)

    @property
    def num_bytes(self) -> int:
        """Memory it takes, in bytes, roughly."""
        return 512 + 150 * len(self.identities)

    def find(self, line: "array[int]") -> Sequence[int]:
        """Returns the numbers of the predicted lines equal to `line`, ascending."""
        first = self._numbers.get(line.tobytes())
        return () if first is None else self._repeated.get(first, (first,))
