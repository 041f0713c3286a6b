"""`optimist bench overload`: several times as many requests as the services can answer."""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from optimist_bench.harness.case_text import functions
from optimist_bench.harness.command import run_command
from optimist_bench.harness.pair import load_tokenizer
from optimist_bench.harness.process_time import (
    count_descriptors,
    find_children,
    read_cpu_seconds,
    read_resident_bytes,
    read_wait_seconds,
)
from optimist_bench.harness.services import address_of, read_metrics, running, stack_specs
from optimist_bench.harness.simulated_service import simulated_worker
from optimist_bench.overload.load import LONGEST_SECONDS, Behaviour, LoadTask, Outcome
from optimist_bench.overload.report import (
    describe,
    find_drain_seconds,
    is_right,
    report_memory,
    report_outcomes,
)
from optimist_cli.serve.ports import free_ports
from optimist_cli.serve.settings import ServeSettings
from optimist_common.settings import ServiceSettings

_SERVICES = {
    "gateway": "optimist_gateway",
    "scheduler": "optimist_scheduler",
    "proposer": "optimist_proposer",
}
NUM_TEXTS = 16
_KEYS = [f"key-of-client-{number}" for number in range(4)]
SAMPLE_SECONDS = 1.0
SETTLE_SECONDS = 20.0
"""By then everything must be back where it was before the load."""


class OverloadSettings(ServiceSettings):
    """Measures how many requests a second the services answer, and then sends a multiple.

    Or a number of clients asks again and again, and comes back when a refusal says. The worker is
    simulated and says given texts, or runs the model. Requests are chats and completions (of a real
    worker completions alone), streamed and whole, predicted and not, of clients with several keys;
    some read slowly, some leave. --json prints the report as one line of JSON instead.
    """

    section: ClassVar[str] = "bench_overload"

    seconds: float = Field(60.0, gt=0, description="how long the overload goes on")
    capacity_seconds: float = Field(10.0, gt=0, description="how long capacity is measured before")
    factor: float = Field(4.0, gt=1, description="how many times the capacity is offered")
    clients: int = Field(
        0, ge=0, le=4096, description="clients that ask again and again instead; 0: the factor"
    )
    simulated: bool = Field(True, description="whether the worker is simulated")
    slots: int = Field(16, ge=1, le=256, description="requests that the worker runs at once")
    places: int = Field(64, ge=8, le=1024, description="requests that the gateway admits at once")
    tokens: int = Field(128, ge=2, le=4096, description="tokens of each answer")
    prompt_tokens: int = Field(17, ge=1, le=2048, description="tokens of each completion's prompt")
    pass_ms: float = Field(20.0, ge=0, description="how long a pass takes")
    slow_share: float = Field(0.05, ge=0, le=0.5, description="share of clients that read slowly")
    leaving_share: float = Field(0.1, ge=0, le=0.5, description="share of clients that leave")
    model: str = Field("models/tiny-edit", description="directory with a tokenizer")


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code: 1 if anything was lost, wrong or not given back.

    Times and memory are only reported.
    """
    return run_command(OverloadSettings, arguments, measure, describe)


def measure(settings: OverloadSettings) -> dict[str, Any]:
    """Runs the services and the load, and returns the report."""
    tokenizer = load_tokenizer(f"{settings.model}/tokenizer.json")
    truths = []
    for number in range(NUM_TEXTS):
        text = "\n\n".join(functions(settings.tokens, number))
        truths.append(tokenizer.encode(text, add_special_tokens=False).ids[: settings.tokens])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "truths.jsonl").write_text("\n".join(json.dumps(truth) for truth in truths))
        with _services(settings, directory) as port:
            load = LoadTask(
                port=port,
                model=Path(settings.model).name,
                texts=[tokenizer.decode(truth, skip_special_tokens=False) for truth in truths],
                num_tokens=settings.tokens,
                keys=_KEYS,
                seconds=settings.capacity_seconds,
                num_clients=min(2 * settings.slots, settings.places // 2),
                prompt_tokens=settings.prompt_tokens,
                share_of_chats=0.5 if settings.simulated else 0.0,
            )
            if not settings.simulated:
                load = replace(load, texts=_learn_texts(load))
            return _overload(settings, load, directory / "outcomes.json")


def _learn_texts(load: LoadTask) -> list[str]:
    """Returns what the model says to each prompt, asked alone."""
    texts = []
    for number in range(NUM_TEXTS):
        body = {
            "model": load.model,
            "prompt": load.prompt(number),
            "max_tokens": load.num_tokens,
            "temperature": 0,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{load.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {load.keys[0]}"},
        )
        with urllib.request.urlopen(request, timeout=LONGEST_SECONDS) as response:  # noqa: S310
            texts.append(json.load(response)["choices"][0]["text"])
    return texts


def _overload(settings: OverloadSettings, closed: LoadTask, output: Path) -> dict[str, Any]:
    """Measures the capacity, exceeds it, and looks whether all is as before."""
    warm, _ = _run(closed, output, {})
    # In a closed loop, by Little's law.
    capacity = closed.num_clients * len(warm) / sum(one.seconds for one in warm)
    pids = find_children(list(_SERVICES.values()))
    services = {name: pids[module] for name, module in _SERVICES.items()}
    time.sleep(SAMPLE_SECONDS)
    before = _held(closed.port, services)
    changes: dict[str, Any] = {
        "num_clients": settings.clients,
        "rate": settings.factor * capacity,
        "seconds": settings.seconds,
        "slow_share": 0.0 if settings.clients else settings.slow_share,
        "leaving_share": 0.0 if settings.clients else settings.leaving_share,
        "share_streamed": 1.0 if settings.clients else closed.share_streamed,
        "seed": 1,
    }
    cpu, waits = (_total(read, services) for read in (read_cpu_seconds, read_wait_seconds))
    outcomes, samples = _run(replace(closed, **changes), output, services)
    cpu = _total(read_cpu_seconds, services, cpu)
    waits = _total(read_wait_seconds, services, waits)
    after = _settle(closed.port, services, before)
    counts = report_outcomes(outcomes)
    return {
        "capacity": round(capacity, 1),
        "offered": round(len(outcomes) / settings.seconds, 1),
        "seconds": settings.seconds,
        "drain_seconds": find_drain_seconds(outcomes, settings.seconds),
        "outcomes": counts,
        "cpu_seconds": cpu,
        "cpu_wait_seconds": waits,
        "memory_mib": report_memory(samples),
        "descriptors": {name: {"before": before[name], "after": after[name]} for name in services},
        "tasks": {"before": before["tasks"], "after": after["tasks"]},
        "all_right": all(one.is_right for one in warm)
        and is_right(counts)
        and _is_back(before, after),
    }


def _total(
    read: Callable[[int], float],
    services: Mapping[str, int],
    since: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Returns what is read of each service, less what it was."""
    return {
        name: round(read(pid) - (since[name] if since else 0.0), 3)
        for name, pid in services.items()
    }


def _run(
    task: LoadTask, output: Path, services: dict[str, int]
) -> tuple[list[Outcome], list[dict[str, int]]]:
    """Runs the load in a process of its own; returns outcomes, and the services' memory."""
    samples = []
    command = [sys.executable, "-m", "optimist_bench.overload.load", str(output)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:  # noqa: S603
        if process.stdin is None:
            raise RuntimeError("the load has no standard input")
        process.stdin.write(json.dumps(asdict(task)).encode())
        process.stdin.close()
        while True:
            samples.append({name: read_resident_bytes(pid) for name, pid in services.items()})
            try:
                process.wait(SAMPLE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            break
    if process.returncode:
        raise RuntimeError(f"the load ended with code {process.returncode}")
    samples.append({name: read_resident_bytes(pid) for name, pid in services.items()})
    rows = json.loads(output.read_text())
    return [Outcome(**row | {"behaviour": Behaviour(row["behaviour"])}) for row in rows], samples


def _held(port: int, services: dict[str, int]) -> dict[str, int]:
    """Returns the open descriptors of each service, and the gateway's tasks."""
    tasks = int(read_metrics(port)["optimist_gateway_event_loop_tasks"])
    return {name: count_descriptors(pid) for name, pid in services.items()} | {"tasks": tasks}


def _settle(port: int, services: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """Waits until all is back where it was, or for as long as that may take."""
    end = time.monotonic() + SETTLE_SECONDS
    while not _is_back(before, held := _held(port, services)) and time.monotonic() < end:
        time.sleep(SAMPLE_SECONDS)
    return held


def _is_back(before: dict[str, int], after: dict[str, int]) -> bool:
    return all(after[name] <= count for name, count in before.items())


@contextmanager
def _services(settings: OverloadSettings, directory: Path) -> Iterator[int]:
    """Runs all services; yields the gateway's port."""
    (port,) = free_ports(1)
    serve = ServeSettings(model=settings.model, port=port, proposers=1)
    keys = ",".join(f"client-{number}:{key}" for number, key in enumerate(_KEYS))
    flags = {
        # It keeps predictions as long as there is room: full soon, so that growth would show.
        "proposer": ["--max-memory-mb", "1"],
        "gateway": [
            *("--max-num-requests", str(settings.places)),
            *("--api-keys", keys, "--public-metrics"),
        ],
    }
    with ExitStack() as stack:
        if settings.simulated:
            worker = stack.enter_context(
                simulated_worker(
                    step_us=round(1000 * settings.pass_ms),
                    truths=str(directory / "truths.jsonl"),
                    max_num_seqs=settings.slots,
                    max_num_batched_tokens=256 * settings.slots,
                )
            )
            flags["scheduler"] = ["--workers", worker]
        else:
            flags["worker"] = ["--max-num-seqs", str(settings.slots)]
        specs = stack_specs(serve, flags, without={"worker"} if settings.simulated else ())
        stack.enter_context(running(specs))
        yield int(address_of(specs, "gateway").rsplit(":", 1)[1])
