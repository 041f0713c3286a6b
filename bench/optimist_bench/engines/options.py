"""Which engines are started and how: the options of benchmarks that ask them, and their reports."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from optimist_bench.engines.servers import (
    ENGINES,
    find_vllm_version,
    require_model,
    require_vllm,
)
from optimist_bench.harness.command import names, numbers
from optimist_common.settings import CommaSeparated, ServiceSettings

_PACKAGES = ("optimist", "torch", "transformers")
EngineNames = Annotated[CommaSeparated, names(tuple(ENGINES), required=True)]


class EngineOptions(ServiceSettings):
    """Which engines are measured, with which model, and how often."""

    engines: EngineNames = Field(
        ["optimist", "optimist-plain", "transformers", "transformers-lookup"],
        description="engines to measure, with commas",
    )
    model: str = Field("models/smollm2", description="directory of the model that all serve")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="number format of the weights: float32, bfloat16 or float16"
    )
    vllm: str = Field(".venv-vllm", description="directory of the environment that has vLLM")
    streams: Annotated[CommaSeparated, numbers(1, 256)] = Field(
        ["1", "8"], description="numbers of requests at a time, with commas"
    )
    turns: int = Field(2, ge=1, le=100, description="how often all engines are measured")
    num_threads: int = Field(0, ge=0, le=1024, description="CPU threads of each engine; 0: cores")

    @property
    def sorted_streams(self) -> list[int]:
        """From the smallest."""
        return sorted(map(int, self.streams))

    @property
    def used_threads(self) -> int:
        """CPU threads of each engine."""
        return self.num_threads or len(os.sched_getaffinity(0))

    def require(self) -> None:
        """Raises SetupError if the model is missing, or what an engine runs in."""
        require_model(self.model)
        require_vllm(self.engines, self.vllm)


def describe_setup(options: EngineOptions) -> dict[str, Any]:
    """Returns what a report says of the engines, of this machine and of what is installed."""
    return {
        "model": options.model,
        "dtype": options.dtype,
        "cpu": _cpu(),
        "threads": options.used_threads,
        "turns": options.turns,
        "versions": {"python": platform.python_version(), **_versions(options)},
        "variables": {
            key: os.environ[key]
            for key in sorted(os.environ)
            # Keys are nobody's business.
            if "OPTIMIST_" in key and "_API_KEY" not in key
        },
        "engines": {
            name: " ".join(ENGINES[name].words(options.model, options.dtype, options.vllm, "PORT"))
            for name in options.engines
        },
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def _versions(options: EngineOptions) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    if any(ENGINES[name].needs_vllm for name in options.engines):
        found["vllm"] = find_vllm_version(options.vllm)
    return found
