"""What the requests of one gateway's stream are sent, step by step."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import to_bytes
from optimist_scheduler.core.output import Output
from optimist_scheduler.translate import finished_message

MAX_WAITING_RESPONSES = 1024


class SlowReaderError(Exception):
    """The gateway does not read its outputs."""


class GatewayStream:
    """The requests of one stream by handle, and the responses that wait to be read."""

    def __init__(self) -> None:
        self.request_ids: dict[int, str] = {}
        """Requests that have not ended, by handle."""
        self._responses: asyncio.Queue[scheduler_pb2.ConnectResponse | None] = asyncio.Queue()
        self.overflown = False
        """Whether too many responses waited; the stream ends with an error."""
        self._takes_no_more = False

    def deliver(self, outputs: Sequence[tuple[int, Output]]) -> bool:
        """Adds the outputs of one step, each with its handle; returns False if too many wait."""
        if self._responses.qsize() >= MAX_WAITING_RESPONSES:
            if not self.overflown:
                self.overflown = True
                self._responses.put_nowait(None)
            return False
        self._responses.put_nowait(_response(outputs))
        for handle, output in outputs:
            if output.finished is not None:
                self.request_ids.pop(handle, None)
        self._end_if_done()
        return True

    def take_no_more(self) -> None:
        """Notes that no further command comes: the stream ends with its last request."""
        self._takes_no_more = True
        self._end_if_done()

    async def responses(self) -> AsyncIterator[scheduler_pb2.ConnectResponse]:
        """Iterates over the responses until the stream ends; raises SlowReaderError."""
        while (response := await self._responses.get()) is not None:
            if self.overflown:
                break
            yield response
        if self.overflown:
            raise SlowReaderError(f"{MAX_WAITING_RESPONSES} outputs wait to be read")

    def _end_if_done(self) -> None:
        if self._takes_no_more and not self.request_ids:
            self._responses.put_nowait(None)


def _response(outputs: Sequence[tuple[int, Output]]) -> scheduler_pb2.ConnectResponse:
    with_tokens = [(handle, output) for handle, output in outputs if output.token_ids]
    return scheduler_pb2.ConnectResponse(
        handles=to_bytes([handle for handle, _ in with_tokens]),
        num_tokens=to_bytes([len(output.token_ids) for _, output in with_tokens]),
        token_ids=to_bytes([token for _, output in with_tokens for token in output.token_ids]),
        num_accepted_tokens=to_bytes([output.num_accepted_tokens for _, output in with_tokens]),
        finished=[
            finished_message(handle, output.finished)
            for handle, output in outputs
            if output.finished is not None
        ],
    )
