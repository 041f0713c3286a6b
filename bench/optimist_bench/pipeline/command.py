"""`optimist bench pipeline`: how much of the time the stages of a pipeline stand idle."""

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator

from optimist_bench.harness.services import running
from optimist_bench.harness.table import format_table
from optimist_bench.pipeline.load import PipelineLoad
from optimist_cli.serve.process import ServiceSpec
from optimist_common.errors import SetupError
from optimist_common.network.health import is_serving
from optimist_common.settings import CommaSeparated, ServiceSettings, load_settings

Pass = Mapping[str, int]
"""A line of a stage's trace."""


class PipelineSettings(ServiceSettings):
    """Measures bubbles of worker pipelines on the CPU, by stages and plans in flight."""

    section: ClassVar[str] = "bench_pipeline"

    stages: CommaSeparated = Field(["2"], description="numbers of stages, with commas")
    plans: CommaSeparated = Field(["1", "2", "3"], description="plans in flight, with commas")
    rows: int = Field(48, ge=1, le=64, description="requests that decode, in all plans together")
    steps: int = Field(40, ge=2, le=400, description="passes of each request that are measured")
    layers: int = Field(8, ge=2, le=64, description="layers of the model")
    hidden: int = Field(512, ge=64, le=4096, multiple_of=64, description="its hidden size")
    host: str = Field("127.0.0.1", description="address of the worker, on this machine")
    port: int = Field(50952, ge=1, le=65535, description="port of the worker")

    @field_validator("stages", "plans")
    @classmethod
    def _are_numbers(cls, values: list[str]) -> list[str]:
        if not values or not all(value.isdigit() and 0 < int(value) <= 16 for value in values):
            raise ValueError("must be numbers from 1 to 16, with commas")
        return values


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    as_json = "--json" in arguments
    settings = load_settings(PipelineSettings, [word for word in arguments if word != "--json"])
    if max(map(int, settings.plans)) > settings.rows:
        raise SetupError(f"--plans: each needs a row, and there are {settings.rows}")
    if max(map(int, settings.stages)) > settings.layers:
        raise SetupError(f"--stages: each needs a layer, and there are {settings.layers}")
    report = measure(settings)
    print(json.dumps(report) if as_json else describe(report))
    return 0


def measure(settings: PipelineSettings) -> dict[str, Any]:
    """Runs each number of stages with each number of plans in flight; returns the report."""
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        model = write_model(Path(directory) / "model", settings)
        for num_stages, num_plans in product(map(int, settings.stages), map(int, settings.plans)):
            print(f"{num_stages} stages, {num_plans} plans in flight", file=sys.stderr)
            trace = Path(directory) / f"trace-{num_stages}-{num_plans}"
            load = PipelineLoad(settings.rows, num_plans, settings.steps)
            with running([_worker(settings, model, trace, num_stages)]):
                seconds = asyncio.run(load.run(f"{settings.host}:{settings.port}"))
            traces = [read_trace(trace, stage) for stage in range(num_stages)]
            runs.append(
                {
                    "num_stages": num_stages,
                    "plans_in_flight": num_plans,
                    "rows_per_plan": load.rows_per_plan,
                    "tokens_per_second": round(load.num_tokens / seconds, 1),
                    # The passes of the prompts come first, one of each plan.
                    **find_bubbles([passes[num_plans:] for passes in traces]),
                }
            )
    return {"layers": settings.layers, "hidden": settings.hidden, "runs": runs}


def find_bubbles(traces: Sequence[Sequence[Pass]]) -> dict[str, Any]:
    """Returns how long stages stand idle between the first pass's begin and the last one's end.

    Args:
        traces: Passes of each stage.
    """
    begin = min(one["begin_ns"] for passes in traces for one in passes)
    end = max(one["end_ns"] for passes in traces for one in passes)
    busy = [sum(one["end_ns"] - one["begin_ns"] for one in passes) for passes in traces]
    idle = [1 - each / (end - begin) for each in busy]
    return {
        "idle_shares": [round(share, 4) for share in idle],
        "bubble": round(sum(idle) / len(idle), 4),
        "pass_ms": [round(each / len(traces[0]) / 1e6, 2) for each in busy],
    }


def describe(report: dict[str, Any]) -> str:
    """Returns the report as a table, a line per run."""
    rows = [
        (
            run["num_stages"],
            run["plans_in_flight"],
            run["rows_per_plan"],
            run["tokens_per_second"],
            " ".join(f"{share:.1%}" for share in run["idle_shares"]),
            f"{run['bubble']:.1%}",
            " ".join(map(str, run["pass_ms"])),
        )
        for run in report["runs"]
    ]
    header = ("stages", "plans", "rows each", "tokens/s", "idle by stage", "bubble", "ms a pass")
    return format_table(header, rows)


def read_trace(directory: Path, stage: int) -> list[Pass]:
    """Reads what a stage has noted."""
    text = (directory / f"stage-{stage}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def write_model(directory: Path, settings: PipelineSettings) -> Path:
    """Writes the config of a Llama; its weights are made up by the worker."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": settings.hidden,
        "intermediate_size": 3 * settings.hidden,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.hidden // 64,
        "num_key_value_heads": settings.hidden // 64,
        "max_position_embeddings": 1024,
        "vocab_size": 512,
        "eos_token_id": 2,
    }
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def _worker(settings: PipelineSettings, model: Path, trace: Path, num_stages: int) -> ServiceSpec:
    options = {
        "model": model,
        "dummy-weights": "true",
        "host": settings.host,
        "port": settings.port,
        "pipeline-parallel-size": num_stages,
        "stage-trace": trace,
        "num-threads": 1,
        "cost-seconds": 0,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    address = f"{settings.host}:{settings.port}"
    return ServiceSpec("worker", words, lambda: is_serving(address, timeout=1.0))
