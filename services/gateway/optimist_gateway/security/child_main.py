"""Answers its parent; started with LOADER ARGUMENT ... as a module.

Both directions are a length in 4 bytes, big-endian, and as many bytes of JSON.
"""

import importlib
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

MEMORY_BYTES = 4 * 1024**3
_LENGTH = struct.Struct(">I")


def main(loader: str, argument: str, seconds: str) -> None:
    """Answers requests until the input ends.

    Args:
        loader: `module:function`; called with the argument it returns what answers.
        argument: What the loader is called with.
        seconds: How long the parent waits for an answer.
    """
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # Whatever a library prints must not get among the answers.
    os.dup2(2, 1)
    # Ctrl-C in a terminal reaches the whole group; the parent decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    module, _, name = loader.partition(":")
    ask = getattr(importlib.import_module(module), name)(argument)
    write_message(answers, {"ready": True})
    while (request := read_message(requests)) is not None:
        # A parent that was killed cannot kill this process any more.
        signal.setitimer(signal.ITIMER_REAL, 2 * float(seconds))
        answer = _answer(ask, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_message(answers, answer)


def read_message(stream: BinaryIO) -> Any:
    """Returns the next message, or None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    return json.loads(stream.read(_LENGTH.unpack(head)[0]))


def write_message(stream: BinaryIO, message: Any) -> None:
    """Writes one message."""
    stream.write(encode_message(message))
    stream.flush()


def encode_message(message: Any) -> bytes:
    """Returns a message as it goes over the pipe."""
    data = json.dumps(message).encode()
    return _LENGTH.pack(len(data)) + data


def _answer(ask: Callable[[Any], str], request: Any) -> dict[str, str]:
    try:
        return {"text": ask(request)}
    except MemoryError:
        return {"error": "it takes too much memory"}
    except Exception as error:
        # Whatever goes wrong is the fault of the request, or of the model's template.
        return {"error": f"{error}"[:1000] or type(error).__name__}


if __name__ == "__main__":
    main(*sys.argv[1:])
