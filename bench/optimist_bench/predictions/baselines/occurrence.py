"""Where the end of an output stood before: the occurrences of its suffixes."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimist_aligner.text.sources import INT32, NO_POSITION, SEPARATOR, Sources

Places = NDArray[np.int32]

MAX_PLACES = 256
"""Most places of a match: of more the last ones count."""


@dataclass(frozen=True, slots=True)
class Match:
    """A suffix of the output that stood elsewhere before."""

    length: int
    """The longest suffix that stands at all these places [tokens]."""
    places: Sequence[int]
    """Places in the text behind each occurrence, ascending."""


class SourceIndex:
    """The sources with the places of each token; does not change.

    Attributes:
        text: A separator, then the sources [num_places + 1].
        positions: Of each place of `text`, as `Sources.positions`.
    """

    def __init__(self, sources: Sources) -> None:
        self.text = array(INT32, [SEPARATOR]) + sources.token_ids
        self.positions = array(INT32, [NO_POSITION]) + sources.positions
        # The token before each place behind which the text goes on.
        before = np.array(self.text[:-1], dtype=np.int32)
        after = np.array(self.text[1:], dtype=np.int32)
        places = np.flatnonzero((before != SEPARATOR) & (after != SEPARATOR)).astype(np.int32)
        order = np.argsort(before[places], kind="stable")
        self._places: Places = places[order] + np.int32(1)
        self._tokens: Places = before[places][order]

    @property
    def num_bytes(self) -> int:
        """Memory it takes, in bytes, roughly."""
        return 512 + 16 * len(self.text)

    def places_behind(self, token_id: int) -> Places:
        """Returns the places behind each occurrence of a token, ascending."""
        first, end = np.searchsorted(self._tokens, (token_id, token_id + 1))
        return self._places[first:end]


class GrowingText:
    """The sources and, behind them, the output so far.

    Attributes:
        token_ids: A separator, the sources, the output.
    """

    __slots__ = ("_output_start", "_own_places", "_sources", "token_ids")

    def __init__(self, sources: SourceIndex) -> None:
        self._sources = sources
        self.token_ids = sources.text[:]
        self._output_start = len(self.token_ids)
        self._own_places: dict[int, array[int]] = {}

    def extend(self, token_ids: "array[int]") -> None:
        """Appends output tokens."""
        first = len(self.token_ids)
        self.token_ids.extend(token_ids)
        for place in range(max(first, self._output_start + 1), len(self.token_ids)):
            before = self.token_ids[place - 1]
            self._own_places.setdefault(before, array(INT32)).append(place)

    @property
    def num_output(self) -> int:
        """Number of output tokens."""
        return len(self.token_ids) - self._output_start

    def position(self, place: int) -> int:
        """Returns the position of a place, see `Sources.positions`."""
        if place >= self._output_start:
            return NO_POSITION
        return self._sources.positions[place]

    def matches(self, max_length: int) -> list[Match]:
        """Returns where the end of the output stood before, the longest suffix last.

        One match for each set of places; the suffixes that have the same set are in one match.

        Args:
            max_length: Longest suffix [tokens].
        """
        if self.num_output == 0:
            return []
        places = self._places_behind_last()
        found: list[Match] = []
        length = 1
        while len(places):
            longer = places[:0]
            if length < min(max_length, self.num_output):
                longer = self._kept(places, length + 1)
            if len(longer) < len(places):
                found.append(Match(length, [int(place) for place in places[-MAX_PLACES:]]))
            places = longer
            length += 1
        return found

    def _places_behind_last(self) -> Sequence[int] | Places:
        last = self.token_ids[-1]
        own = self._own_places.get(last, ())
        places = self._sources.places_behind(last)
        if len(places) + len(own) <= MAX_PLACES:
            return [*places.tolist(), *own]
        return np.concatenate((places, np.array(own, dtype=np.int32)))

    def _kept(self, places: Sequence[int] | Places, length: int) -> Sequence[int] | Places:
        """Returns the places before which the last `length` tokens stand; one fewer do."""
        token_ids = self.token_ids
        wanted = token_ids[-length]
        if isinstance(places, np.ndarray) and len(places) > MAX_PLACES:
            view = np.frombuffer(token_ids, dtype=np.int32)
            kept: Places = places[view[places - length] == wanted]
            return kept
        return [int(place) for place in places if token_ids[place - length] == wanted]
