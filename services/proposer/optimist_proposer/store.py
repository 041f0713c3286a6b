"""What keeps cursors and predictions between batches."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from optimist_proposer.core.cursor import VERSION_BYTES, Cursor
from optimist_proposer.core.prediction import Prediction

GENERATION_BYTES = 8


class StoreError(Exception):
    """The store cannot be reached; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A request that begins, or begins anew."""

    request_id: str
    prediction: Prediction
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a store holds of a request."""

    prediction: Prediction
    cursor: Cursor
    """A copy: changing it changes nothing in the store."""
    version: bytes
    """Which opening of the request this is of, and the cursor's epoch and known length."""


@dataclass(frozen=True, slots=True)
class Update:
    """A cursor that moved."""

    request_id: str
    version: bytes
    """The version it moved on from."""
    cursor: Cursor


class CursorStore(ABC):
    """Cursors and predictions by request id; every method raises StoreError if out of reach."""

    @abstractmethod
    async def start(self) -> None:
        """Raises SetupError if the store cannot be reached."""

    @abstractmethod
    async def open(self, openings: Sequence[Opening]) -> None:
        """Sets prediction and cursor of each, whatever was there."""

    @abstractmethod
    async def load(self, request_ids: Sequence[str]) -> list[Snapshot | None]:
        """Returns what is held of each request; None where nothing is."""

    @abstractmethod
    async def save(self, updates: Sequence[Update]) -> list[bool]:
        """Sets each cursor if the store still holds the version it moved on from.

        Returns:
            Whether it was set, for each.
        """

    @abstractmethod
    async def close(self, request_ids: Sequence[str]) -> None:
        """Drops what is held of each request, if anything is."""

    @abstractmethod
    async def stop(self) -> None:
        """Lets go of connections."""


def new_generation() -> bytes:
    """Returns a name for one opening of one request, so that an earlier one cannot touch it."""
    return secrets.token_bytes(GENERATION_BYTES)


def pack_state(generation: bytes, cursor: Cursor) -> bytes:
    """Encodes a cursor as stores keep it; the first bytes are its version."""
    return generation + cursor.pack()


def version_of(state: bytes) -> bytes:
    """Returns the version at the head of a packed state."""
    return state[: GENERATION_BYTES + VERSION_BYTES]


def unpack_cursor(state: bytes) -> Cursor:
    """Decodes the cursor of a packed state; raises ValueError if it has another format."""
    return Cursor.unpack(state[GENERATION_BYTES:])
