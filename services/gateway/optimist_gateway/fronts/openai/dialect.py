"""How endpoints word their answers."""

from collections.abc import Sequence
from typing import Any, Protocol

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.request import Request


class ChoiceWriter(Protocol):
    """Words one choice of an answer: whole, or in chunks that are asked for in order."""

    @property
    def is_stateless(self) -> bool:
        """Whether a chunk depends on its piece alone."""
        ...

    def first(self) -> dict[str, Any] | None:
        """Returns what the choice of the first chunk holds, or None if there is no such chunk."""
        ...

    def chunk(self, piece: Piece, *, even_if_empty: bool) -> dict[str, Any] | None:
        """Returns what the choice of a chunk holds.

        Args:
            piece: What a step added.
            even_if_empty: Whether there is to be a chunk that says nothing; else None is returned
                for it.
        """
        ...

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Returns what the choice of a whole answer holds."""
        ...


class Dialect(Protocol):
    """How one endpoint words its answers."""

    endpoint: str
    id_prefix: str
    whole_object: str
    chunk_object: str

    def writer(self, request: Request) -> ChoiceWriter:
        """Returns what words one choice of an answer to a request."""
        ...


def reason_name(piece: Piece) -> str | None:
    """Returns why an answer ended, as the API says it; None while it goes on."""
    return piece.finish_reason.api_name if piece.finish_reason is not None else None
