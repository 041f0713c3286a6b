"""A mapping that forgets what was used least recently when it grows too large."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Holds at most `max_items` values of at most `max_bytes` together, as told by `put`."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items, self._max_bytes = max_items, max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Returns the value and counts as its use; None if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, num_bytes: int) -> int:
        """Sets a value of `num_bytes`; returns how many others were forgotten for it.

        A value larger than `max_bytes` alone is kept until the next `put`.
        """
        self.pop(key)
        self._entries[key] = (value, num_bytes)
        self.num_bytes += num_bytes
        num_forgotten = 0
        while len(self._entries) > 1 and (
            len(self._entries) > self._max_items or self.num_bytes > self._max_bytes
        ):
            _, (_, size) = self._entries.popitem(last=False)
            self.num_bytes -= size
            num_forgotten += 1
        return num_forgotten

    def pop(self, key: K) -> None:
        """Forgets a value if there is one."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry[1]
