"""Where an output goes on copying from its sources, good enough for a small log."""

from array import array

# A shorter copy takes hardly less room than its tokens, and is found by chance more often.
_MIN_TOKENS = 3
# Tokens that are looked up together, and how far around the expected place.
_NEEDLE_TOKENS = 6
_TOKENS_BEFORE = 1024
_TOKENS_BEHIND = 3072


class CopySearch:
    """Follows the place behind the last copy."""

    def __init__(self, source: "array[int]", hint: int) -> None:
        """Takes the tokens to copy from [num_places], and where a copy is expected."""
        self._source = source
        self.hint = hint
        """Place behind the last copy."""
        self._first = 0
        self._nearby: bytes | None = None

    def find(self, token_ids: "array[int]", position: int, num_skipped: int) -> tuple[int, int]:
        """Looks for the output tokens from a position on; notes the place behind if they are there.

        Args:
            token_ids: Output tokens [num_tokens].
            position: The first to find.
            num_skipped: Tokens before it that are no copy.

        Returns:
            The place of the first, and how many are copied from there on; 0 if none.
        """
        shortest = min(_MIN_TOKENS, len(token_ids) - position)
        # After an insertion it goes on where it ended, after a replacement so much farther.
        for place in (self.hint, self.hint + num_skipped):
            length = self._length(place, token_ids, position)
            if length >= shortest:
                return self._note(place, length)
        needle = token_ids[position : position + _NEEDLE_TOKENS]
        if len(needle) < _MIN_TOKENS:
            return 0, 0
        place = self._search(needle)
        return self._note(place, self._length(place, token_ids, position)) if place >= 0 else (0, 0)

    def _note(self, place: int, length: int) -> tuple[int, int]:
        self.hint, self._nearby = place + length, None
        return place, length

    def _search(self, needle: "array[int]") -> int:
        """Returns a place near the hint at which the tokens are; -1 if there is none."""
        size = self._source.itemsize
        hint = min(max(self.hint, 0), len(self._source))
        if self._nearby is None:
            self._first = max(hint - _TOKENS_BEFORE, 0)
            self._nearby = self._source[self._first : hint + _TOKENS_BEHIND].tobytes()
        # Rather behind the expected place: output seldom goes back.
        for start in ((hint - self._first) * size, 0):
            found = self._nearby.find(needle.tobytes(), start)
            while found >= 0 and found % size:
                found = self._nearby.find(needle.tobytes(), found + 1)
            if found >= 0:
                return self._first + found // size
        return -1

    def _length(self, place: int, token_ids: "array[int]", position: int) -> int:
        """Returns how many tokens from a position on are equal to those from a place on."""
        source = self._source
        if not 0 <= place < len(source) or source[place] != token_ids[position]:
            return 0
        limit = min(len(source) - place, len(token_ids) - position)
        if source[place : place + limit] == token_ids[position : position + limit]:
            return limit
        length = 1
        while source[place + length] == token_ids[position + length]:
            length += 1
        return length
