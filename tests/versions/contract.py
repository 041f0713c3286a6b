"""Messages as services of other versions write them."""

import json
from collections.abc import Callable
from functools import partial

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from optimist.proposer.v1 import proposer_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from tests.stack import REPOSITORY

BASELINE = REPOSITORY / "protos" / "baseline.json"
"""The contract of the last release, which `buf breaking` compares the present one with."""
# Fields 1000 (a number) and 1001 (a text), which no version has.
UNKNOWN_FIELDS = b"\xc0\x3e\x07\xca\x3e\x05later"

Change = Callable[[str, bytes], bytes]
"""Returns a message, named by its full name, as the other version would write it."""

METHODS: dict[str, tuple[str, str]] = {
    f"/{service.full_name}/{method.name}": (
        method.input_type.full_name,
        method.output_type.full_name,
    )
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
