"""The engines: each a command that starts a server with OpenAI's API."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from optimist_cli.serve.ports import free_ports
from optimist_common.errors import SetupError
from optimist_common.process import end_with_this_process

START_SECONDS = 600.0
STOP_SECONDS = 30.0
_POLL_SECONDS = 0.1

_SERVE = ("{python}", "-m", "optimist_cli", "serve", "{model}")
_OURS = (*_SERVE, "--dtype", "{dtype}", "--port", "{port}")
_GENERATE = ("{python}", "-m", "optimist_bench.peers.generate_server", "{model}")
_TRANSFORMERS = (*_GENERATE, "--dtype", "{dtype}", "--port", "{port}")
_VLLM_FLAGS = (
    *("--dtype", "{dtype}", "--max-model-len", "4096", "--enforce-eager"),
    "--enable-prefix-caching",
)
_VLLM = (
    *("{vllm}/bin/vllm", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
    *_VLLM_FLAGS,
    # Without them it refuses calls that have to be made.
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
_VLLM_ENGINE = (
    *(*_SERVE, "--engine", "vllm", "--engine-python", "{vllm}/bin/python", "--port", "{port}"),
    *("--", *_VLLM_FLAGS),
)
_VLLM_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Then vLLM sets how its threads wait too; passively its attention takes three times as long.
    "VLLM_CPU_OMP_THREADS_BIND": "{cpus}",
    "VLLM_NO_USAGE_STATS": "1",
    # As vLLM's page on CPUs advises.
    "LD_PRELOAD": "{vllm}/lib/libiomp5.so",
}

_PACKAGES = "lib/python*/site-packages"

# As our worker waits for its threads. The client runs beside the servers, and threads that spin on
# for one that has no processor would slow the others down several times.
_WAITING = {"GOMP_SPINCOUNT": "100000"}
_VARIABLES = {"HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Engine:
    """How to start a server that answers /health, /v1/models and /v1/chat/completions."""

    command: tuple[str, ...]
    """Words with {python}, {vllm}, {model}, {dtype} and {port}."""
    without_drafts: str
    """The engine whose answers these have to be equal to: the same software, drafting nothing."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment, besides what all engines get, with {vllm} and {cpus}."""
    takes_predictions: bool = False
    takes_batches: bool = True
    """Otherwise it answers one request after the other, and is asked so."""

    def words(self, model: str, dtype: str, vllm: str, port: int | str) -> list[str]:
        """Returns the command line."""
        values = {"python": sys.executable, "vllm": vllm, "model": model}
        return [word.format(**values, dtype=dtype, port=port) for word in self.command]

    @property
    def needs_vllm(self) -> bool:
        """Whether it runs in vLLM's environment."""
        return any(word.startswith("{vllm}") for word in self.command)


ENGINES = {
    "optimist": Engine(_OURS, "optimist-plain", takes_predictions=True),
    "optimist-plain": Engine(
        _OURS, "optimist-plain", {"OPTIMIST_SCHEDULER_NUM_SPECULATIVE_TOKENS": "0"}
    ),
    # With heads beside the model, see docs/training.md.
    "optimist-eagle": Engine(
        (*_OURS, "--drafter", "eagle"), "optimist-plain", takes_predictions=True
    ),
    "optimist-medusa": Engine(
        (*_OURS, "--drafter", "medusa"), "optimist-plain", takes_predictions=True
    ),
    # Our gateway with vLLM as its engine: what vllm-optimist is with vLLM's own front.
    "optimist-vllm-engine": Engine(_VLLM_ENGINE, "vllm", _VLLM_VARIABLES, takes_predictions=True),
    "transformers": Engine(_TRANSFORMERS, "transformers", _WAITING),
    "transformers-lookup": Engine(
        (*_TRANSFORMERS, "--lookup"), "transformers", _WAITING, takes_batches=False
    ),
    "vllm": Engine(_VLLM, "vllm", _VLLM_VARIABLES),
    "vllm-ngram": Engine(
        (*_VLLM, "--speculative-config", '{{"method":"ngram","num_speculative_tokens":16}}'),
        "vllm",
        _VLLM_VARIABLES,
    ),
    "vllm-suffix": Engine(
        (
            *(*_VLLM, "--speculative-config"),
            # It would keep the answers of earlier rounds, which these repeat.
            '{{"method":"suffix","suffix_decoding_max_cached_requests":0}}',
        ),
        "vllm",
        _VLLM_VARIABLES,
    ),
    "vllm-optimist": Engine(
        (
            *(*_VLLM, "--speculative-config"),
            '{{"model":"optimist_vllm.Proposer","num_speculative_tokens":64}}',
        ),
        "vllm",
        _VLLM_VARIABLES,
        takes_predictions=True,
    ),
}


@contextmanager
def running_engine(name: str, model: str, dtype: str, vllm: str, num_threads: int) -> Iterator[str]:
    """Starts an engine and yields its URL when it can be asked; ends it afterwards.

    Args:
        name: A key of ENGINES.
        model: Directory of the model.
        dtype: Number format, such as float32.
        vllm: Directory of the environment that has vLLM.
        num_threads: CPU threads of a forward pass.

    Raises:
        SetupError: It did not start; the message has the last line that it printed.
    """
    engine = ENGINES[name]
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[:num_threads]))
    variables = {key: value.format(vllm=vllm, cpus=cpus) for key, value in engine.variables.items()}
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(  # noqa: S603
            engine.words(model, dtype, vllm, port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | _VARIABLES | {"OMP_NUM_THREADS": str(num_threads)} | variables,
            preexec_fn=end_with_this_process(signal.SIGTERM),
        )
        try:
            if not _becomes_healthy(process, url):
                log.seek(0)
                lines = log.read().split("\n")
                reason = next((line for line in reversed(lines) if line.strip()), "it said nothing")
                raise SetupError(f"{name} did not start: {reason.strip()}")
            yield url
        finally:
            _end(process)


def _becomes_healthy(process: "subprocess.Popen[bytes]", url: str) -> bool:
    """Waits until the server is healthy; returns False if it has ended, or has had its time."""
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(timeout=5.0, trust_env=False) as http:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if http.get(f"{url}/health").is_success:
                    return True
            except httpx.TransportError:
                pass
            time.sleep(_POLL_SECONDS)
    return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def require_vllm(names: Sequence[str], vllm: str) -> None:
    """Raises SetupError if an engine needs vLLM, or vLLM what it drafts with, and it lacks."""
    for name in names:
        if ENGINES[name].needs_vllm and not (Path(vllm) / "bin" / "vllm").is_file():
            raise SetupError(f"--vllm: {name} needs vLLM in {vllm}: make vllm-setup")
        if name == "vllm-suffix" and not any(Path(vllm).glob(f"{_PACKAGES}/arctic_inference")):
            raise SetupError(
                f"--vllm: {name} needs arctic-inference in {vllm}: see docs/benchmarks.md"
            )


def find_vllm_version(vllm: str) -> str | None:
    """Returns the version of vLLM in its environment, such as `0.32.0+cpu`; None if unknown."""
    for found in Path(vllm).glob(f"{_PACKAGES}/vllm-*.dist-info"):
        return found.name.removeprefix("vllm-").removesuffix(".dist-info")
    return None


def require_model(model: str) -> None:
    """Raises SetupError if there is no model directory."""
    if not (Path(model) / "config.json").is_file():
        raise SetupError(f"--model: {model or 'it'} is no directory with a config.json")
