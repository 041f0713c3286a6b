"""What an algorithm is: it reads the sources once, then follows outputs and says how they go on."""

from abc import abstractmethod
from array import array
from typing import Protocol

from optimist_aligner.drafting.draft import Draft
from optimist_aligner.text.sources import Sources


class Follower(Protocol):
    """Follows the output of one request.

    What it proposes depends on the sources and the output alone, not on how the output was divided
    into observations or on what was proposed before: any replica that gets the same output
    proposes the same.
    """

    @property
    def num_alignments(self) -> int:
        """How often the position in the predictions was searched for; 0 if it never is."""
        return 0

    @abstractmethod
    def observe(self, token_ids: "array[int]") -> None:
        """Takes the output tokens after those already observed [num_tokens]."""

    @abstractmethod
    def propose(self, max_tokens: int, min_value: float) -> Draft:
        """Returns how the output is expected to go on; changes nothing.

        Args:
            max_tokens: Most nodes, at least 1.
            min_value: Least value of a node, 0 for all.
        """


class Reference(Protocol):
    """Sources in the form that an algorithm searches; requests with the same sources share it."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Memory it takes, in bytes, roughly."""

    @abstractmethod
    def follow(self) -> Follower:
        """Begins to follow an output from its first token on."""


class Algorithm(Protocol):
    """Makes references. Holds no state of any request, so that it serves all of them."""

    @abstractmethod
    def prepare(self, sources: Sources) -> Reference:
        """Returns the sources in the form that followers search."""
