"""The sources and the output after them, as one text."""

from collections.abc import Iterable

from librt.vecs import append, vec
from mypy_extensions import i32


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
