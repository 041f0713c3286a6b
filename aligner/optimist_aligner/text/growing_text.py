"""The sources and the output after them, as one text."""

from collections.abc import Iterable

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from optimist_aligner.text.context_index import TOKEN_BITS, TOKEN_OFFSET


class GrowingText:
    """Tokens in one piece of memory, without an object for each.

    Attributes:
        ids: The tokens. A `vec` keeps its length when another one grows, so whoever reads takes it
            from here each time.
    """

    __slots__ = ("ids",)

    def __init__(self, token_ids: Iterable[int]) -> None:
        """Begins with some tokens."""
        self.ids = vec[i32](token_ids)

    def __len__(self) -> int:
        return len(self.ids)

    def copy(self) -> "GrowingText":
        """Returns a text of its own that begins with the same tokens."""
        text = GrowingText(())
        text.ids = self.ids[:]
        return text

    def append(self, token_id: int) -> None:
        """Takes one more token."""
        self.ids = append(self.ids, token_id)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Takes more tokens."""
        ids = self.ids
        for token_id in token_ids:
            ids = append(ids, token_id)
        self.ids = ids

    def end_key(self, order: int) -> int:
        """Returns the `context_key` of the last `order` tokens, at most MOST_ORDER."""
        ids = self.ids
        end: i64 = len(ids)
        key: i64 = 0
        for distance in range(1, order + 1):
            key = (key << TOKEN_BITS) | (i64(ids[end - distance]) + TOKEN_OFFSET)
        return int(key)
