"""Sources in the form that followers search, as one process holds them for all their requests."""

from dataclasses import dataclass

from optimist_aligner.algorithm import Reference
from optimist_aligner.text.sources import Sources
from optimist_proposer.core.source_value import SourceName


@dataclass(slots=True)
class Prepared:
    """Sources with their name and reference."""

    name: SourceName
    sources: Sources
    reference: Reference
    refreshed_at: float = float("-inf")
    """When the store was last known to hold them, in seconds of a steady clock."""

    @property
    def num_bytes(self) -> int:
        """Memory they take, in bytes, roughly."""
        return 1024 + 8 * len(self.sources.token_ids) + self.reference.num_bytes
