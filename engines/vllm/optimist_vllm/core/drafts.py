"""The drafts of a row on their way to the workers."""

from array import array


class Drafts(array):  # type: ignore[type-arg]
    """Token ids of drafts: vLLM's dump of a crash says how many there are, not which."""

    def anon_repr(self) -> str:
        """Returns what the dump prints."""
        return f"<{len(self)} drafts>"
