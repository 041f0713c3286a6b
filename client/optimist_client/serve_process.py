"""`optimist serve` as a child process that ends when its parent does."""

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence

# Longer than `optimist serve` takes to end its services one by one.
_GRACE_SECONDS = 30.0
_READY = "Optimist serves"


class ServeProcess:
    """Services on this machine, healthy when constructed; their log goes to standard error."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts the services and waits until all are healthy.

        Args:
            arguments: The command line after `optimist serve`.
            environment: Environment variables of the services.

        Raises:
            RuntimeError: They could not start; the message has their own last line.
        """
        self._last_lines: deque[str] = deque(maxlen=20)
        # Standard input stays open as long as this process lives and is never written to, so that
        # the services end however this process ends. A session of their own keeps Ctrl-C away from
        # them: requests are cancelled first.
        self._process = subprocess.Popen(  # noqa: S603 (a list of words, no shell)
            [sys.executable, "-m", "optimist_cli", "serve", *arguments, "--end-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def require_running(self) -> None:
        """Raises RuntimeError if the services have ended; the message has their own last line."""
        code = self._process.poll()
        if code is not None:
            self._reader.join()
            reason = self._last_lines[-1] if self._last_lines else "it printed nothing"
            raise RuntimeError(f"the services ended with exit code {code}: {reason}")

    def stop(self) -> None:
        """Ends the services and waits for their end; does nothing if they have ended."""
        process = self._process
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(_GRACE_SECONDS)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        self._reader.join()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def _wait_until_ready(self) -> None:
        for line in self._process.stdout or ():
            if line.startswith(_READY):
                return
        self._process.wait()
        self.require_running()

    def _read_log(self) -> None:
        for line in self._process.stderr or ():
            self._last_lines.append(line.rstrip("\n"))
            print(line, end="", file=sys.stderr, flush=True)  # noqa: T201 (as the services would)
