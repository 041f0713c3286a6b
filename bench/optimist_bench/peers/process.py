"""The benchmark's side of a peer's process."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

TokenIds = list[int]


@dataclass(frozen=True)
class Setup:
    """What a peer answers with; the same for all of them and for ours."""

    model: str
    """Directory of the model."""
    draft_model: str
    """Directory of the draft model for peers that speculate with one; empty: none."""
    max_tokens: int
    """Most tokens of an answer."""
    max_model_len: int
    """Most tokens of a prompt and its answer."""
    max_concurrency: int
    """Most prompts that are answered at once."""
    num_threads: int
    """Threads of a forward pass."""


class Engine(Protocol):
    """A loaded peer."""

    def answer(self, prompts: Sequence[TokenIds], concurrency: int) -> list[TokenIds]:
        """Answers prompts greedily, so many at once as far as the engine can.

        Returns:
            The tokens of each answer; whether the end token is part of it is up to the engine.
        """
        ...


def in_batches(prompts: Sequence[TokenIds], size: int) -> list[list[TokenIds]]:
    """Returns the prompts in lists of `size`, for engines that take one batch after the other."""
    return [list(prompts[start : start + size]) for start in range(0, len(prompts), size)]


_ROOT = Path(__file__).parents[2]
"""Where the package `optimist_bench` lies."""


class PeerError(RuntimeError):
    """A peer that cannot run here, or failed; the text says why."""


class PeerProcess:
    """A peer that was started; `wait_until_ready` before it is asked."""

    def __init__(self, name: str, setup: Setup, python: str = "") -> None:
        """Starts the peer.

        Args:
            name: One of `optimist_bench.peers.__main__.LOADERS`.
            setup: What it answers with.
            python: The interpreter that has the peer's packages; empty for this one.

        Raises:
            PeerError: There is no such interpreter.
        """
        self.name = name
        threads = str(setup.num_threads)
        environment = os.environ | {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
        if python:
            environment["PYTHONPATH"] = str(_ROOT)
        command = [python or sys.executable, "-m", "optimist_bench.peers", name]
        try:
            self._process = subprocess.Popen(  # noqa: S603
                [*command, json.dumps(asdict(setup))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                text=True,
            )
        except OSError as error:
            raise PeerError(f"{python}: {error.strerror}") from None

    def wait_until_ready(self) -> None:
        """Returns when the peer has loaded; raises PeerError if it cannot."""
        self._read()

    def answer(self, prompts: Sequence[TokenIds], concurrency: int) -> tuple[list[TokenIds], float]:
        """Returns the answers and the seconds that they took; raises PeerError."""
        if self._process.stdin is None:
            raise RuntimeError("the peer has no standard input")
        request = {"prompts": list(prompts), "concurrency": concurrency}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError("ended before it was asked") from None
        reply = self._read()
        return reply["answers"], float(reply["seconds"])

    def close(self) -> None:
        """Ends the peer."""
        self._process.kill()
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        if self._process.stdout is None:
            raise RuntimeError("the peer has no standard output")
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"ended with code {self._process.wait()} and said nothing")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerError(str(reply["error"]))
        return reply
