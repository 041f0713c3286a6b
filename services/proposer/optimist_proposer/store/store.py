"""What replicas share of requests: their sources and outputs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from optimist_proposer.core.sources import SourceName
from optimist_proposer.core.stored_request import LogWrite, StoredRequest


class StoreError(Exception):
    """The store cannot be reached; the message says why, in one line."""


class OutputStore(ABC):
    """Sources by name and outputs by request id; all but `start` and `stop` raise StoreError."""

    @abstractmethod
    async def start(self) -> None:
        """Raises SetupError if the store cannot be reached."""

    @abstractmethod
    async def read(self, request_ids: Sequence[str]) -> list[StoredRequest | None]:
        """Returns what is held of each request; None where nothing is."""

    @abstractmethod
    async def read_sources(self, names: Sequence[SourceName]) -> list[bytes | None]:
        """Returns packed sources; None where there are none."""

    @abstractmethod
    async def write(self, writes: Sequence[LogWrite], closed: Sequence[str]) -> list[int]:
        """Does writes of different requests, their sources included, and drops closed requests.

        Returns:
            The answer to each write: the number of tokens that the store knows then, UNKNOWN or
            OTHER_OPENING.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Lets go of connections."""
