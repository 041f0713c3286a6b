"""Pieces of an answer for a reader that takes the next one when it is ready."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.generation.choices import Choices


class PieceInbox:
    """Holds what came until it is read; the choices pause meanwhile."""

    def __init__(self, choices: Choices) -> None:
        """Takes what tells its pieces to `take`."""
        self._choices = choices
        self._pieces: deque[tuple[int, Piece]] = deque()
        self._news = asyncio.Event()
        choices.ended.add_done_callback(lambda _: self._news.set())

    def take(self, index: int, piece: Piece) -> None:
        """Adds a piece of a choice."""
        self._pieces.append((index, piece))
        self._choices.pause()
        self._news.set()

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Yields the pieces, each with the index of its choice; raises as `Choices.wait` does."""
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if self._choices.ended.done():
                await self._choices.wait()
                return
            self._news.clear()
            self._choices.resume()
            await self._news.wait()
