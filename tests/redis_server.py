"""A real Redis on a free port of this machine, empty and without persistence."""

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from optimist_cli.serve.ports import free_ports
from optimist_common.errors import SetupError

_START_SECONDS = 10.0
# The second one comes from a server that wants a password.
_ANSWERS = (b"+PONG\r\n", b"-NOAUTH")


class RedisServer:
    """One `redis-server` process; a restart keeps the port and forgets the data."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        """Starts nothing yet; raises SetupError if the program is not there.

        Args:
            directory: Where it may write.
            arguments: More of its command line; a configuration file goes first.
        """
        binary = shutil.which("redis-server")
        if binary is None:
            raise SetupError("there is no program redis-server: apt-get install redis-server")
        (self.port,) = free_ports(1)
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"redis://{self.address}/0"
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory)]
        options += ["--save", "", "--appendonly", "no"] if "--sentinel" not in arguments else []
        self._command = [binary, *arguments, *options]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Starts it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it at once."""
        self.kill()

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"redis-server does not answer on port {self.port}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Ends it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stops it, so that it keeps its connections and answers nothing, until `thaw`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) in _ANSWERS
        except OSError:
            return False
