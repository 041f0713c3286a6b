"""Follows the prediction and, after a difference, finds its position again at the ends of lines.

The algorithm of the project's founding document, exact in three points that it leaves open:

- Re-anchored, the cursor is the start of the predicted line after the matched one, plus the part
  of the current output line that matches it. The search runs when a line is completed, before the
  tokens after it are looked at; these then move the cursor like any others, and lose it if they
  are not what the predicted line begins with. So the cursor depends on the tokens alone, not on
  how they were divided into observations.
- A predicted line can end the alignment if it equals the output line just completed. Among several
  such lines those count for which the longest common subsequence (over lines) of the output with
  the prediction up to that line is longest; among these, the first that is not before the line
  where the cursor was lost, since output rarely goes back; if all are before it, the last.
- Without such a line the cursor stays lost until the next line is completed.

Several predictions are searched as one; the cursor begins at the first.

A draft is a copy from the sources, with values by the hazard law: after `e` tokens that matched
since it was found, the next one differs with a probability of about 1/(e + 1) (measured on edits of
source code). So the n-th token of a copy, and all before it, are right with a probability of
e/(e + n): little evidence is tried with little, and a copy that holds is trusted soon.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence, Set
from difflib import SequenceMatcher

from optimist_aligner.algorithm import Algorithm, Follower, Reference
from optimist_aligner.drafting.draft import FLOAT32, Draft
from optimist_aligner.text.lines import line_starts
from optimist_aligner.text.sources import INT32, SEPARATOR, Sources

try:
    from rapidfuzz.distance import LCSseq
except ImportError:
    HAS_RAPIDFUZZ = False
else:
    HAS_RAPIDFUZZ = True

START_EVIDENCE = 256
"""Evidence, in tokens, that an output begins as the first prediction does: that is its purpose."""


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the length of the longest common subsequence.

    Without RapidFuzz it is that of the blocks that difflib finds, which may be less.
    """
    if HAS_RAPIDFUZZ:
        length: int = LCSseq.similarity(one, other)
        return length
    return sum(
        block.size for block in SequenceMatcher(None, one, other, False).get_matching_blocks()
    )


def copied(
    sources: Sources,
    index: int,
    evidence: int,
    max_tokens: int,
    min_value: float,
) -> Draft:
    """Returns what follows from an index in the sources on, up to the end of that text.

    So many tokens of evidence matched before the index.
    """
    # One more than may stay, so that rounding cannot cost one; `chained` takes it off.
    room = evidence * (1 / min_value - 1) + 1 if min_value > 0 else max_tokens
    count = max_tokens if room >= max_tokens else max(0, int(room))
    token_ids = sources.token_ids[index : index + count]
    if SEPARATOR in token_ids:
        del token_ids[token_ids.index(SEPARATOR) :]
    positions = sources.positions[index : index + len(token_ids)]
    return chained(token_ids, positions, evidence, min_value)


def chained(
    token_ids: "array[int]", positions: "array[int]", evidence: int, min_value: float
) -> Draft:
    """Returns consecutive tokens as a chain, as far as their values go; see `copied`."""
    values = array(FLOAT32, [evidence / (evidence + n) for n in range(1, len(token_ids) + 1)])
    while values and values[-1] < min_value:
        values.pop()
    count = len(values)
    return Draft(token_ids[:count], array(INT32, range(-1, count - 1)), positions[:count], values)


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


LOST = -1
"""Index of a follower that does not know where the output stands."""


class LineAlgorithm(Algorithm):
    """Re-anchors at completed lines."""

    def __init__(self, newline_token_ids: Set[int]) -> None:
        """Takes the tokens that end a line."""
        self._newline_token_ids = newline_token_ids

    def prepare(self, sources: Sources) -> "LineReference":
        """See `Algorithm.prepare`."""
        return LineReference(sources, self._newline_token_ids)


class LineReference(Reference):
    """The sources and the lines of the predictions."""

    def __init__(self, sources: Sources, newline_token_ids: Set[int]) -> None:
        self.sources = sources
        self.newline_token_ids = newline_token_ids
        self.lines = LineIndex(sources, newline_token_ids)

    @property
    def num_bytes(self) -> int:
        """See `Reference.num_bytes`."""
        return 512 + 8 * len(self.sources.token_ids) + self.lines.num_bytes

    def follow(self) -> "LineFollower":
        """See `Reference.follow`."""
        return LineFollower(self)


class LineFollower(Follower):
    """The cursor of the founding document.

    Attributes:
        index: Index in the sources of the next output token; LOST if unknown.
        num_losses: How often it lost it.
        tail: While lost, the current output line as far as it may equal a predicted one.
    """

    __slots__ = (
        "_completed",
        "_line",
        "_lines",
        "_newline_token_ids",
        "_num_alignments",
        "_sources",
        "_trusted_from",
        "index",
        "num_losses",
        "tail",
    )

    def __init__(self, reference: LineReference) -> None:
        self._sources = reference.sources
        self._lines = reference.lines
        self._newline_token_ids = reference.newline_token_ids
        self._num_alignments = self.num_losses = 0
        self.index = 0 if reference.sources.num_predicted else LOST
        # Predicted line where it stands, or stood when it was lost.
        self._line = 0
        # The completed output lines that are predicted ones, as `LineIndex.identities`.
        self._completed = array(INT32)
        self.tail = array(INT32)
        self._trusted_from = -START_EVIDENCE

    @property
    def num_alignments(self) -> int:
        """See `Follower.num_alignments`."""
        return self._num_alignments

    def observe(self, token_ids: "array[int]") -> None:
        """See `Follower.observe`."""
        position = 0
        while position < len(token_ids):
            if self.index != LOST:
                count = self._num_following(token_ids, position)
                self._advance(count)
                position += count
                if position < len(token_ids):
                    self._lose()
                continue
            end = end_of_line(token_ids, position, self._newline_token_ids)
            stop = end if end >= 0 else len(token_ids)
            # A line longer than every predicted one equals none; what is beyond need not be kept.
            room = self._lines.longest_line + 1 - len(self.tail)
            self.tail.extend(token_ids[position:stop][: max(room, 0)])
            position = stop
            if end >= 0:
                self._complete_line()

    def propose(self, max_tokens: int, min_value: float) -> Draft:
        """See `Follower.propose`."""
        if self.index == LOST:
            return Draft()
        evidence = self.index - self._trusted_from
        return copied(self._sources, self.index, evidence, max_tokens, min_value)

    def _num_following(self, token_ids: "array[int]", start: int) -> int:
        """Returns how many of the tokens from `start` on are as predicted."""
        wanted = token_ids[start:] if start else token_ids
        predicted = self._sources.token_ids[self.index : self.index + len(wanted)]
        if predicted == wanted:
            return len(wanted)
        count = 0
        # Sources end with a separator, which equals no token.
        while predicted[count] == wanted[count]:
            count += 1
        return count

    def _advance(self, count: int) -> None:
        self.index += count
        starts = self._lines.starts
        while starts[self._line + 1] <= self.index:
            self._completed.append(self._lines.identities[self._line])
            self._line += 1

    def _lose(self) -> None:
        # An aligned output line equals the predicted one so far, so it need not be kept until now.
        self.tail = self._sources.token_ids[self._lines.starts[self._line] : self.index]
        self.index = LOST
        self.num_losses += 1

    def _complete_line(self) -> None:
        """Ends the current line and searches for it in the predictions."""
        same = self._lines.find(self.tail)
        num_tokens = len(self.tail)
        self.tail = self.tail[:0]
        self._num_alignments += 1
        if not same:
            return
        self._line = self._choose(same) + 1
        self._completed.append(same[0])
        self.index = self._lines.starts[self._line]
        self._trusted_from = self.index - num_tokens

    def _choose(self, candidates: Sequence[int]) -> int:
        """Returns the candidate with the longest common subsequence before it (see above).

        Candidates are the predicted lines equal to the line just completed, ascending.
        """
        if len(candidates) == 1:
            return candidates[0]

        def common(line: int) -> int:
            return common_length(self._lines.identities[:line], self._completed)

        # The length never falls from one candidate to the next, so the best are the last ones.
        best = bisect_left(candidates, common(candidates[-1]), key=common)
        forward = bisect_left(candidates, self._line)
        return candidates[min(max(best, forward), len(candidates) - 1)]
