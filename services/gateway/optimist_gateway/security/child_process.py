"""Work on what a client sent, in a process of its own, which is ended if it takes too long.

Chat templates are rendered and grammars compiled in such processes. Started as a module with LOADER
ARGUMENT SECONDS, this is such a process. What both send is a length in 4 bytes, big-endian, and as
many bytes: of JSON to the process, and from it a byte that says whether the text after it is an
answer or an error. To parse megabytes would keep the event loop.
"""

import asyncio
import importlib
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

from optimist_gateway.security.beside import beside

logger = logging.getLogger(__name__)

START_SECONDS = 60.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_READ_AHEAD_BYTES = 2**20
_ANSWER, _ERROR = b"+", b"-"
MEMORY_BYTES = 4 * 1024**3
_LENGTH_BYTES = 4


class ChildError(Exception):
    """The process refuses what it was given; the text says why."""


class ChildTimeoutError(Exception):
    """An answer took longer than it may; the process was ended."""


class ChildUnavailableError(Exception):
    """Nothing can be asked now: the process does not start, or died."""


class ChildDiedError(ChildUnavailableError):
    """The process died of what it was asked."""


@dataclass(eq=False)
class ChildProcess:
    """One warm process that answers one question at a time; started again whenever it was ended.

    How many wait is not bounded here: they are requests that were admitted, or connections.
    """

    loader: str
    """`module:function`; the process imports it and calls it with the argument to get a function
    from one JSON value to a text."""
    argument: str
    seconds: float
    """The longest that one text may take."""
    what: str
    """What errors say the process is for."""
    _process: asyncio.subprocess.Process | None = field(init=False, default=None)
    _turn: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    async def ask(self, value: Any, size: int = 0) -> str:
        """Returns the text for a JSON value, which has about so many characters.

        Raises:
            ChildError: The function in the process raised; the text is its message.
            ChildTimeoutError: It took too long.
            ChildUnavailableError: It cannot be asked.
        """
        message = await beside(partial(encode_message, value), size)
        await self._turn.acquire()
        asking = asyncio.create_task(self._answer(message))
        asking.add_done_callback(self._end_turn)
        # Who leaves lets the exchange end: to start the process again would take everybody longer.
        answer = await asyncio.shield(asking)
        text = answer[1:].decode(errors="surrogatepass")
        if answer[:1] == _ERROR:
            raise ChildError(text)
        return text

    async def stop(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()

    def _end_turn(self, asking: "asyncio.Task[bytes]") -> None:
        self._turn.release()
        if not asking.cancelled():
            # Nobody may be there who hears of it.
            asking.exception()

    async def _answer(self, message: bytes) -> bytes:
        process = await self._running()
        try:
            async with self._stop_if_it_fails(), asyncio.timeout(self.seconds):
                return await _exchange(process, message)
        except TimeoutError:
            logger.error("%s took longer than %g s", self.what, self.seconds)
            reason = f"{self.what} took longer than {self.seconds:g} seconds"
            raise ChildTimeoutError(reason) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ChildDiedError(f"the process of {self.what} died") from None

    @asynccontextmanager
    async def _stop_if_it_fails(self) -> AsyncIterator[None]:
        """Ends a process that was left within an exchange: its next answer would be this one's."""
        try:
            yield
        except BaseException:
            await asyncio.shield(self.stop())
            raise

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        words = [self.loader, self.argument, str(self.seconds)]
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "optimist_gateway.security.child_process", *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_READ_AHEAD_BYTES,
        )
        does_not_start = f"the process of {self.what} does not start"
        try:
            async with self._stop_if_it_fails(), asyncio.timeout(START_SECONDS):
                await _read(process)
        except TimeoutError:
            reason = f"{does_not_start} within {START_SECONDS:g} seconds"
            raise ChildUnavailableError(reason) from None
        except asyncio.IncompleteReadError:
            raise ChildUnavailableError(f"{does_not_start}; the log says why") from None
        return process


async def _exchange(process: asyncio.subprocess.Process, message: bytes) -> bytes:
    writing = asyncio.create_task(_write(process, message))
    try:
        answer = await _read(process)
        await writing
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    return answer


async def _write(process: asyncio.subprocess.Process, message: bytes) -> None:
    if process.stdin is None:
        raise ConnectionError("the process has no input")
    process.stdin.write(message)
    await process.stdin.drain()


async def _read(process: asyncio.subprocess.Process) -> bytes:
    if process.stdout is None:
        raise ConnectionError("the process has no output")
    length = int.from_bytes(await process.stdout.readexactly(_LENGTH_BYTES), "big")
    if length > MAX_ANSWER_BYTES:
        raise ConnectionError(f"an answer of {length} bytes")
    answer = await process.stdout.readexactly(length)
    if answer[:1] not in (_ANSWER, _ERROR):
        raise ConnectionError("an answer that is none")
    return answer


def main(loader: str, argument: str, seconds: str) -> None:
    """Answers requests until the input ends; the parent waits so many seconds for an answer."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # Whatever a library prints must not get among the answers.
    os.dup2(2, 1)
    # Ctrl-C in a terminal reaches the whole group; the parent decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    module, _, name = loader.partition(":")
    ask = getattr(importlib.import_module(module), name)(argument)
    write_message(answers, _ANSWER)
    while (request := read_message(requests)) is not None:
        # A parent that was killed cannot kill this process any more.
        signal.setitimer(signal.ITIMER_REAL, 2 * float(seconds))
        answer = _answer(ask, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_message(answers, answer)


def read_message(stream: BinaryIO) -> Any:
    """Returns the next message, or None at the end of the stream."""
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    return json.loads(stream.read(int.from_bytes(head, "big")))


def write_message(stream: BinaryIO, data: bytes) -> None:
    """Writes one message."""
    stream.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    stream.flush()


def encode_message(value: Any) -> bytes:
    """Returns a JSON value as it goes over the pipe to the process."""
    data = json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def _answer(ask: Callable[[Any], str], request: Any) -> bytes:
    try:
        return _ANSWER + ask(request).encode(errors="surrogatepass")
    except MemoryError:
        return _ERROR + b"it takes too much memory"
    except Exception as error:
        # Whatever goes wrong is the fault of the request, or of the model's template.
        reason = f"{error}"[:1000] or type(error).__name__
        return _ERROR + reason.encode(errors="surrogatepass")


if __name__ == "__main__":
    main(*sys.argv[1:])
