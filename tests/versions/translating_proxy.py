"""A gRPC proxy between two services that makes one of them look like another version."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from optimist.proposer.v1 import proposer_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.network.channel import open_channel
from optimist_common.network.server import SERVER_OPTIONS
from tests.stack import REPOSITORY

BASELINE = REPOSITORY / "protos" / "baseline.json"
"""The contract of the last release, which `buf breaking` compares the present one with."""
# Fields 1000 (a number) and 1001 (a text), which no version has.
UNKNOWN_FIELDS = b"\xc0\x3e\x07\xca\x3e\x05later"

Context = grpc.aio.ServicerContext[bytes, bytes]
Change = Callable[[str, bytes], bytes]
"""Returns a message, named by its full name, as the other version would write it."""

_METHODS: dict[str, list[str]] = {
    f"/{service.full_name}/{method.name}": [
        kind.full_name for kind in (method.input_type, method.output_type)
    ]
    for file in (proposer_pb2, scheduler_pb2, worker_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""The full names of the request and the response of each of our methods."""


def older() -> Change:
    """Returns a change that leaves what the last release knew."""
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet()
    image = json.loads(BASELINE.read_text())
    json_format.ParseDict(image, files, ignore_unknown_fields=True)
    for file in files.file:
        pool.Add(file)
    return partial(_reduce, pool)


def _reduce(pool: descriptor_pool.DescriptorPool, name: str, data: bytes) -> bytes:
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()
    message.ParseFromString(data)
    message.DiscardUnknownFields()
    return message.SerializeToString()


def newer(name: str, data: bytes) -> bytes:
    """Adds fields to a message, and to those in it, that only a later release knows."""
    pool = descriptor_pool.Default()
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()
    message.ParseFromString(data)
    _add_fields(message)
    return message.SerializeToString()


def _add_fields(message: Message) -> None:
    message.MergeFromString(UNKNOWN_FIELDS)
    for field, value in message.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        for each in value if field.is_repeated else [value]:
            _add_fields(each)


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
        self, method: str, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        of_requests, of_responses = _METHODS.get(method, ("", ""))

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
