"""`optimist bench pipeline`: how much of the time the stages of a pipeline are idle."""

import asyncio
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_bench.harness.command import format_table, numbers, run_command
from optimist_bench.harness.services import running
from optimist_cli.serve.process import ServiceSpec
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.errors import SetupError
from optimist_common.network.channel import open_channel
from optimist_common.network.health import is_serving
from optimist_common.settings import CommaSeparated, ServiceSettings

PROMPT = list(range(3, 11))
_BLOCK_SIZE = 16


class PipelineLoad:
    """Rows shared evenly among plans, each of which is sent again when its answer is there."""

    def __init__(self, num_rows: int, num_plans: int, num_steps: int) -> None:
        """Sets a load up.

        Args:
            num_rows: Requests; what is left over after sharing is left out.
            num_plans: Plans in flight, without common rows.
            num_steps: Tokens of each request after the first.
        """
        self.rows_per_plan = num_rows // num_plans
        self.num_tokens = self.rows_per_plan * num_plans * num_steps
        self._num_plans, self._num_steps = num_plans, num_steps
        self._sequence = 0

    async def run(self, address: str) -> float:
        """Runs the load; returns the seconds that decoding took.

        Raises:
            RuntimeError: The worker refuses a row.
        """
        async with open_channel(address) as channel:
            call = worker_pb2_grpc.WorkerServiceStub(channel).Execute()
            for group in range(self._num_plans):
                await call.write(self._admit(group))
            for _ in range(self._num_plans):
                await _read(call)
            begin = time.perf_counter()
            in_flight = deque((group, 1) for group in range(self._num_plans))
            for group in range(self._num_plans):
                await call.write(self._decode(group))
            while in_flight:
                group, step = in_flight.popleft()
                await _read(call)
                if step < self._num_steps:
                    await call.write(self._decode(group))
                    in_flight.append((group, step + 1))
            seconds = time.perf_counter() - begin
            call.cancel()
        return seconds

    def _slots(self, group: int) -> range:
        return range(group * self.rows_per_plan, (group + 1) * self.rows_per_plan)

    def _admit(self, group: int) -> worker_pb2.ExecuteRequest:
        slots = self._slots(group)
        per_row = -(-(len(PROMPT) + self._num_steps + 1) // _BLOCK_SIZE)
        request = self._plan(group, len(PROMPT), per_row)
        request.new_blocks = to_bytes(
            [per_row * slot + block for slot in slots for block in range(per_row)]
        )
        for slot in slots:
            request.admissions.add(
                slot=slot,
                request_id=str(slot),
                token_ids=to_bytes([*PROMPT[1:], 3 + slot]),
                num_prompt_tokens=len(PROMPT),
            )
        return request

    def _decode(self, group: int) -> worker_pb2.ExecuteRequest:
        return self._plan(group, 1, 0)

    def _plan(self, group: int, num_known: int, num_new: int) -> worker_pb2.ExecuteRequest:
        slots = list(self._slots(group))
        self._sequence += 1
        return worker_pb2.ExecuteRequest(
            sequence=self._sequence,
            slots=to_bytes(slots),
            num_known_tokens=to_bytes([num_known] * len(slots)),
            num_draft_tokens=to_bytes([0] * len(slots)),
            num_new_blocks=to_bytes([num_new] * len(slots)),
        )


async def _read(call: Any) -> None:
    response = await call.read()
    if not isinstance(response, worker_pb2.ExecuteResponse):
        raise RuntimeError(f"the worker has ended the stream: {await call.details()}")
    numbers = from_bytes(response.num_emitted_tokens)
    if response.errors or (numbers != 1).any():
        raise RuntimeError(f"the worker has not run every row: {list(response.errors)}")


Pass = Mapping[str, int]
"""A line of a stage's trace."""


class PipelineSettings(ServiceSettings):
    """Measures bubbles of worker pipelines on the CPU, by stages and plans in flight."""

    section: ClassVar[str] = "bench_pipeline"

    stages: Annotated[CommaSeparated, numbers(1, 16)] = Field(
        ["2"], description="numbers of stages, with commas"
    )
    plans: Annotated[CommaSeparated, numbers(1, 16)] = Field(
        ["1", "2", "3"], description="plans in flight, with commas"
    )
    rows: int = Field(48, ge=1, le=64, description="requests that decode, in all plans together")
    steps: int = Field(40, ge=2, le=400, description="passes of each request that are measured")
    layers: int = Field(8, ge=2, le=64, description="layers of the model")
    hidden: int = Field(512, ge=64, le=4096, multiple_of=64, description="its hidden size")
    host: str = Field("127.0.0.1", description="address of the worker, on this machine")
    port: int = Field(50952, ge=1, le=65535, description="port of the worker")


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    return run_command(PipelineSettings, arguments, measure, describe)


def measure(settings: PipelineSettings) -> dict[str, Any]:
    """Runs each number of stages with each number of plans in flight; returns the report.

    Raises:
        SetupError: There are more plans than rows, or more stages than layers.
    """
    if max(map(int, settings.plans)) > settings.rows:
        raise SetupError(f"--plans: each needs a row, and there are {settings.rows}")
    if max(map(int, settings.stages)) > settings.layers:
        raise SetupError(f"--stages: each needs a layer, and there are {settings.layers}")
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
    """Returns how long stages are idle between the first pass's begin and the last one's end.

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
