"""One supervised service: a child process whose log lines are prefixed with its name."""

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from optimist_common.process import end_with_this_process

# The longest log line that is passed on; asyncio raises on longer ones by itself.
MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class ServiceSpec:
    """How to start one service and how to find out whether it is healthy."""

    name: str
    arguments: list[str]
    """Flags after the module."""
    is_healthy: Callable[[], bool]
    """Asks the service, for at most about a second; runs in a thread."""
    module: str = ""
    """What `python -m` starts; empty for `optimist_<name>`."""
    python: str = sys.executable
    start_seconds: float = 180.0
    """How long it may take until it is healthy."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """More variables of its environment."""


@dataclass
class ServiceProcess:
    """The running process of a spec. `exit_code` waits for its end."""

    spec: ServiceSpec
    write_line: Callable[[str, str], None]
    """Called with the service's name and each line that it prints."""
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    _process: asyncio.subprocess.Process | None = None
    _reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the process; its standard output and error are read until it ends."""
        self._process = await asyncio.create_subprocess_exec(
            self.spec.python,
            "-m",
            self.spec.module or f"optimist_{self.spec.name}",
            *self.spec.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=MAX_LINE_BYTES,
            env=os.environ | self.spec.variables,
            # Ctrl-C goes to the supervisor alone, which ends the services in order.
            start_new_session=True,
            preexec_fn=end_with_this_process(signal.SIGTERM),
        )
        self._reader = asyncio.create_task(self._read())

    async def exit_code(self) -> int:
        """Waits until the process has ended and its last line is written."""
        if self._process is None or self._reader is None:
            raise RuntimeError("exit_code before start")
        code = await self._process.wait()
        # Whoever gives up waiting must not end the reading.
        await asyncio.shield(self._reader)
        return code

    async def stop(self, grace_seconds: float) -> None:
        """Ends the process with SIGTERM, after the grace period with SIGKILL."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace_seconds)
        except TimeoutError:
            self._process.kill()
        await self.exit_code()

    def say(self, line: str) -> None:
        """Writes a line about the service; the service goes on if nobody reads any more."""
        with suppress(OSError):
            self.write_line(self.spec.name, line)

    async def _read(self) -> None:
        if self._process is None or self._process.stdout is None:
            raise RuntimeError("read before start")
        stream = self._process.stdout
        while True:
            try:
                raw = await stream.readline()
            except ValueError:
                self.say("(a line longer than 1 MiB was dropped)")
                continue
            if not raw:
                return
            line = raw.decode("utf-8", errors="replace").rstrip("\n")
            self.last_lines.append(line)
            self.say(line)
