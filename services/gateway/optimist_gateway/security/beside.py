"""Work on what a client sent, beside the event loop: in a thread, or in a process of its own.

Chat templates are rendered and grammars compiled in processes, which are ended if that takes too
long. Started as a module with LOADER ARGUMENT SECONDS SOCKET, this is such a process. JSON goes
both ways, a line each: to it any value, and from it an object with a `text` or an `error`.
"""

import asyncio
import importlib
import json
import logging
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, NamedTuple, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

INLINE = 2**14
"""So many characters, bytes or tokens take no longer than to hand them to a thread."""
LONG = INLINE + 1
"""Of what is not worth measuring."""
# One after the other: threads that want the interpreter keep the event loop from it all together.
_LANE = ThreadPoolExecutor(1, "beside")


async def beside(work: Callable[[], T], size: int) -> T:
    """Returns what work on so many characters, bytes or tokens returns, done in a thread if many.

    The event loop waits for the interpreter a few milliseconds at a time, unless the work is one
    call of a library that does not let go of it: such calls must be on little at a time.
    """
    if size <= INLINE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_LANE, copy_context().run, work)


START_SECONDS = 60.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MEMORY_BYTES = 4 * 1024**3


class ChildError(Exception):
    """The process refuses what it was given; the text says why."""


class ChildTimeoutError(Exception):
    """An answer took longer than it may; the process was ended."""


class ChildUnavailableError(Exception):
    """Nothing can be asked now: the process does not start, or died."""


class ChildDiedError(ChildUnavailableError):
    """The process died of what it was asked."""


class _Child(NamedTuple):
    process: "subprocess.Popen[bytes]"
    socket: socket.socket
    answers: IO[bytes]
    """What is read of the socket."""

    def receive(self) -> Any:
        """Returns the next message; raises OSError, such as TimeoutError, or EOFError."""
        line = self.answers.readline(MAX_ANSWER_BYTES)
        if not line.endswith(b"\n"):
            raise EOFError
        return json.loads(line)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.answers.close()
        self.socket.close()


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
    _child: _Child | None = field(init=False, default=None)
    _thread: ThreadPoolExecutor = field(
        init=False, default_factory=partial(ThreadPoolExecutor, 1, "child")
    )
    """Who leaves lets an exchange end: to start the process again would take everybody longer."""

    async def ask(self, value: Any) -> str:
        """Returns the text for a JSON value.

        Raises:
            ChildError: The function in the process raised; the text is its message.
            ChildTimeoutError: It took too long.
            ChildUnavailableError: It cannot be asked.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, copy_context().run, self._ask, value)

    async def stop(self) -> None:
        """Ends the process."""
        child, self._child = self._child, None
        if child is not None:
            await asyncio.to_thread(child.end)

    def _ask(self, value: Any) -> str:
        child = self._running()
        try:
            child.socket.sendall(json.dumps(value).encode() + b"\n")
            answer = child.receive()
        except TimeoutError:
            child.end()
            reason = f"{self.what} took longer than {self.seconds:g} seconds"
            logger.error("%s", reason)
            raise ChildTimeoutError(reason) from None
        except (EOFError, OSError, ValueError):
            # A file that was closed meanwhile is a ValueError.
            child.end()
            raise ChildDiedError(f"the process of {self.what} died") from None
        if "error" in answer:
            raise ChildError(answer["error"])
        return str(answer["text"])

    def _running(self) -> _Child:
        if self._child is not None:
            if self._child.process.poll() is None:
                return self._child
            self._child.end()
        ours, theirs = socket.socketpair()
        ours.settimeout(START_SECONDS)
        words = [self.loader, self.argument, str(self.seconds), str(theirs.fileno())]
        with theirs:
            process = subprocess.Popen(  # noqa: S603 (ourselves)
                [sys.executable, "-m", "optimist_gateway.security.beside", *words],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._child = child = _Child(process, ours, ours.makefile("rb"))
        try:
            child.receive()
            ours.settimeout(self.seconds)
        except (EOFError, OSError, ValueError):
            # A timeout is an OSError, too.
            child.end()
            reason = f"the process of {self.what} does not start; the log says why"
            raise ChildUnavailableError(reason) from None
        return child


def main(loader: str, argument: str, seconds: str, number: str) -> None:
    """Answers requests until the parent ends; it waits so many seconds for an answer."""
    # Ctrl-C in a terminal reaches the whole group; the parent decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    module, _, name = loader.partition(":")
    ask = getattr(importlib.import_module(module), name)(argument)
    with socket.socket(fileno=int(number)) as parent, parent.makefile("rb") as requests:
        parent.sendall(b"{}\n")
        for request in requests:
            # A parent that was killed cannot kill this process any more.
            signal.setitimer(signal.ITIMER_REAL, 2 * float(seconds))
            parent.sendall(_answer(ask, json.loads(request)) + b"\n")
            signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(ask: Callable[[Any], str], request: Any) -> bytes:
    try:
        return json.dumps({"text": ask(request)}).encode()
    except MemoryError:
        reason = "it takes too much memory"
    except Exception as error:
        # Whatever goes wrong is the fault of the request, or of the model's template.
        reason = f"{error}"[:1000] or type(error).__name__
    return json.dumps({"error": reason}).encode()


if __name__ == "__main__":
    main(*sys.argv[1:])
