"""The store of a proposer that has no replica: its own memory."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from optimist_proposer.core.lru import Lru
from optimist_proposer.core.prediction import Prediction
from optimist_proposer.store import (
    GENERATION_BYTES,
    CursorStore,
    Opening,
    Snapshot,
    Update,
    new_generation,
    pack_state,
    unpack_cursor,
    version_of,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    prediction: Prediction
    state: bytes


class MemoryStore(CursorStore):
    """Keeps what was used last of at most `max_requests` requests and `max_bytes` bytes."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._entries: Lru[str, _Entry] = Lru(max_requests, max_bytes)

    async def start(self) -> None:
        """Needs nothing."""

    async def open(self, openings: Sequence[Opening]) -> None:
        """See `CursorStore.open`."""
        for opening in openings:
            state = pack_state(new_generation(), opening.cursor)
            self._put(opening.request_id, _Entry(opening.prediction, state))

    async def load(self, request_ids: Sequence[str]) -> list[Snapshot | None]:
        """See `CursorStore.load`."""
        snapshots: list[Snapshot | None] = []
        for request_id in request_ids:
            entry = self._entries.get(request_id)
            if entry is None:
                snapshots.append(None)
                continue
            version = version_of(entry.state)
            snapshots.append(Snapshot(entry.prediction, unpack_cursor(entry.state), version))
        return snapshots

    async def save(self, updates: Sequence[Update]) -> list[bool]:
        """See `CursorStore.save`."""
        saved = []
        for update in updates:
            entry = self._entries.get(update.request_id)
            current = entry is not None and version_of(entry.state) == update.version
            if entry is not None and current:
                state = pack_state(update.version[:GENERATION_BYTES], update.cursor)
                self._put(update.request_id, _Entry(entry.prediction, state))
            saved.append(current)
        return saved

    async def close(self, request_ids: Sequence[str]) -> None:
        """See `CursorStore.close`."""
        for request_id in request_ids:
            self._entries.pop(request_id)

    async def stop(self) -> None:
        """Holds no connections."""

    def _put(self, request_id: str, entry: _Entry) -> None:
        num_bytes = entry.prediction.num_bytes + len(entry.state) + len(request_id)
        num_forgotten = self._entries.put(request_id, entry, num_bytes)
        if num_forgotten:
            logger.warning(
                "%d requests forgotten, the memory store is full (%d requests, %d bytes); they "
                "go on without drafts unless opened again",
                num_forgotten,
                len(self._entries),
                self._entries.num_bytes,
            )
