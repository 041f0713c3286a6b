"""The plans of one Execute call, until they end or another call replaces it."""

import asyncio
from collections.abc import AsyncIterator

from optimist.worker.v1 import worker_pb2


class PlanStream:
    """Reads one plan ahead of the running one.

    All further plans wait in gRPC's flow control, so a sender that is too fast is slowed down.
    """

    def __init__(self, requests: AsyncIterator[worker_pb2.ExecuteRequest]) -> None:
        self.replaced = False
        self._requests = requests
        self._ahead = asyncio.ensure_future(anext(requests, None))

    async def next(self) -> worker_pb2.ExecuteRequest | None:
        """Returns the next plan, or None when there is none or the stream was replaced."""
        try:
            request = await self._ahead
        except asyncio.CancelledError:
            if self.replaced:
                return None
            raise
        if self.replaced or request is None:
            return None
        self._ahead = asyncio.ensure_future(anext(self._requests, None))
        return request

    def replace(self) -> None:
        """Ends the stream before its next plan."""
        self.replaced = True
        self._ahead.cancel()

    def close(self) -> None:
        """Stops reading."""
        self._ahead.cancel()
