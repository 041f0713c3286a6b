"""The stream of one gateway: its requests, and the responses that wait to be read."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.network.mailbox import Mailbox

MAX_WAITING_RESPONSES = 1024


class SlowReaderError(Exception):
    """The gateway does not read its outputs."""


class BrokenOffError(Exception):
    """The stream was broken off, as what the gateway knows holds no longer; the text is why."""


class GatewayStream:
    """The requests of one stream by handle, and the responses that wait to be read."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        """The stream's number."""
        self.request_ids: dict[int, str] = {}
        """Requests that have not ended, by handle."""
        self.names: dict[int, Sequence[str]] = {}
        """Names of their clients' requests, by handle."""
        self.num_unanswered = 0
        """Commands that are answered later."""
        self.overflown = False
        """Whether too many responses waited; the stream ends with an error."""
        self.fault = ""
        """Why the stream ends with an error after what waits, if it does."""
        self._responses: Mailbox[scheduler_pb2.ConnectResponse] = Mailbox()
        self._takes_no_more = False
        self._was_read = asyncio.Event()

    def remove(self, handle: int) -> None:
        """Forgets a request that has ended."""
        self.request_ids.pop(handle, None)
        self.names.pop(handle, None)

    def find(self, name: str) -> list[int]:
        """Returns the handles of the requests that have a name of their client's request."""
        return [handle for handle, names in self.names.items() if name in names]

    def send(self, response: scheduler_pb2.ConnectResponse) -> bool:
        """Adds a response; returns False if too many wait."""
        if len(self._responses) >= MAX_WAITING_RESPONSES:
            if not self.overflown:
                self.overflown = True
                self._responses.close()
            return False
        self._responses.put(response)
        self._end_if_done()
        return True

    def break_off(self, reason: str) -> None:
        """Ends the stream with an error after what waits."""
        self.fault = reason
        self._responses.close()

    def take_no_more(self) -> None:
        """Notes that no further command comes: the stream ends with its last answer."""
        self._takes_no_more = True
        self._end_if_done()

    async def until_read(self) -> None:
        """Waits while half as many responses wait as may: commands come no faster than replies."""
        while len(self._responses) > MAX_WAITING_RESPONSES // 2 and not self.overflown:
            self._was_read.clear()
            await self._was_read.wait()

    async def responses(self) -> AsyncIterator[scheduler_pb2.ConnectResponse]:
        """Iterates over the responses until the stream ends.

        Raises:
            SlowReaderError: Too many wait.
            BrokenOffError: The stream was broken off.
        """
        async for response in self._responses.items():
            self._was_read.set()
            if self.overflown:
                break
            yield response
        self._was_read.set()
        if self.overflown:
            raise SlowReaderError(f"{MAX_WAITING_RESPONSES} outputs wait to be read")
        if self.fault:
            raise BrokenOffError(self.fault)

    def _end_if_done(self) -> None:
        if self._takes_no_more and not self.request_ids and not self.num_unanswered:
            self._responses.close()
