"""`vllm serve` as a user starts it, in vLLM's own environment (`make vllm-setup`).

`OPTIMIST_TEST_VLLM` names another environment that has vLLM and the plugin.
"""

import os
import subprocess
from pathlib import Path

import httpx
from openai import OpenAI

from tests.integration.edit import connect
from tests.stack import REPOSITORY, VLLM_VARIABLES, free_port, read_totals, wait_until

BIN = Path(os.environ.get("OPTIMIST_TEST_VLLM", REPOSITORY / ".venv-vllm")) / "bin"
FLAG = '{"model":"optimist_vllm.Proposer","num_speculative_tokens":64}'
START_SECONDS = 600.0


class Server:
    """A server on a free port; its log is a file."""

    def __init__(self, log: Path, model: str, *options: str, **variables: str) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = log
        command = [str(BIN / "vllm"), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--served-model-name", "model", "--max-model-len", "2048", "--enforce-eager"]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, *options],
                cwd=REPOSITORY,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | VLLM_VARIABLES | variables,
            )

    def wait(self) -> OpenAI:
        """Waits until it serves; returns a client of it."""
        wait_until(
            lambda: self._answers() or self._process.poll() is not None, "vLLM", START_SECONDS
        )
        assert self._answers(), self.log.read_text()[-4000:]
        return connect(self.url)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0).is_success
        except httpx.TransportError:
            return False

    def end(self) -> int:
        """Waits until it has ended by itself; returns its exit status."""
        return self._process.wait(START_SECONDS)

    def close(self) -> None:
        self._process.terminate()
        self.end()

    def metric(self, name: str) -> float:
        """Returns the sum of a counter over its labels."""
        return read_totals(f"{self.url}/metrics").get(name, 0.0)
