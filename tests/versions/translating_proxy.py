"""A gRPC proxy between two services that makes one of them look like another version."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

from optimist_common.network.channel import open_channel
from optimist_common.network.server import SERVER_OPTIONS
from tests.versions.contract import METHODS, Change

_Context = grpc.aio.ServicerContext[bytes, bytes]


class TranslatingProxy(grpc.GenericRpcHandler):
    """Passes all calls on to a service, their messages changed; runs in a thread of its own."""

    def __init__(self, target: str, change: Change, first_requests: dict[str, bytes]) -> None:
        """Starts it.

        Args:
            target: The service's host:port.
            change: What becomes of messages, in both directions.
            first_requests: What is sent ahead of a call's own requests, by method.
        """
        self.num_changed = 0
        """Messages that became others."""
        self.address = ""
        self._target, self._change, self._first = target, change, first_requests
        self._started, self._ended = threading.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run()])
        self._thread.start()
        assert self._started.wait(10)

    def stop(self) -> None:
        """Ends all calls."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Returns what handles a call; a call with one message is a stream with one."""
        method: Any = handler_call_details.method
        return grpc.stream_stream_rpc_method_handler(partial(self._pass_on, method))

    async def _run(self) -> None:
        server = grpc.aio.server(handlers=[self], options=SERVER_OPTIONS)
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        async with open_channel(self._target) as self._channel:
            await server.start()
            self._started.set()
            await self._ended.wait()
            await server.stop(None)

    async def _pass_on(
        self, method: str, requests: AsyncIterator[bytes], context: _Context
    ) -> AsyncIterator[bytes]:
        of_requests, of_responses = METHODS.get(method, ("", ""))

        async def changed_requests() -> AsyncIterator[bytes]:
            if method in self._first:
                yield self._first[method]
            async for request in requests:
                yield self._changed(of_requests, request)

        # Without serialisers messages are bytes, which the types do not say.
        begin: Any = self._channel.stream_stream(method)
        call = begin(changed_requests())
        try:
            async for response in call:
                yield self._changed(of_responses, response)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        finally:
            with suppress(asyncio.CancelledError):
                call.cancel()

    def _changed(self, name: str, data: bytes) -> bytes:
        if not name:
            return data
        changed = self._change(name, data)
        self.num_changed += changed != data
        return changed
