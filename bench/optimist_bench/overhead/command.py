"""`optimist bench overhead`: what serving costs around a model that costs nothing."""

import json
import random
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, count
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Literal

from pydantic import Field
from tokenizers import Tokenizer

from optimist_bench.harness.case_text import functions
from optimist_bench.harness.command import format_table, run_command
from optimist_bench.harness.pair import load_tokenizer
from optimist_bench.harness.process_time import (
    find_children,
    find_stolen_share,
    read_cpu_seconds,
    read_machine_seconds,
)
from optimist_bench.harness.services import address_of, read_metrics, running, stack_specs
from optimist_bench.harness.simulated_service import read_emissions, simulated_worker
from optimist_cli.serve.ports import free_ports
from optimist_cli.serve.settings import ServeSettings
from optimist_common.settings import ServiceSettings
from optimist_training.data.options import read_json_lines

_WORKER = "optimist_bench.harness.simulated_service"
_SERVICES = {
    "gateway": "optimist_gateway",
    "scheduler": "optimist_scheduler",
    "proposer": "optimist_proposer",
    "simulated_worker": _WORKER,
}

_WARM_UP_TOKENS = 16
PACED_MS = 15.0
"""How long a pass of a model may take that serves 64 streams on a GPU."""


class OverheadSettings(ServiceSettings):
    """Streams answers of a worker without a model through real services, and says what each costs.

    In a first run passes take no time, which shows how many tokens the services can serve, and what
    one costs then; how long tokens take is measured in a second one, with passes of 15 ms. With
    --pass-ms there is one run, whose passes take that long. With --predictions the answers are
    predicted. With --answers random each answer is of other tokens, drawn one by one, so that
    nothing in it can be drafted: what following such requests costs is the difference between
    --follow all and --follow predictions. `woken` and `rested` say how often a window woke a
    request, and how often one was given up again. As many short requests go before, which do not
    count. `stolen` is the share of the processor time that a virtual machine's host took for
    others: with much of it the other figures say something of the host. --json prints the report as
    one line of JSON instead.
    """

    section: ClassVar[str] = "bench_overhead"

    streams: int = Field(64, ge=1, le=1024, description="requests at a time")
    tokens: int = Field(2048, ge=2, le=16_384, description="tokens of each answer")
    predictions: bool = Field(False, description="whether answers are predicted")
    answers: Literal["functions", "random", "edits"] = Field(
        "functions",
        description="functions (one text of source code), random (no two are alike) or edits (the "
        "texts after them, whose predictions are those before)",
    )
    pairs: str = Field("", description="with --answers edits: JSON lines with `before` and `after`")
    follow: Literal["all", "predictions"] = Field(
        "all", description="which requests the proposer follows, as the scheduler has it"
    )
    pass_ms: float | None = Field(None, ge=0, description="how long a pass takes, in a single run")
    token_us: int = Field(0, ge=0, description="how much longer each token makes a pass")
    free_tokens: int = Field(0, ge=0, description="tokens of a pass that make it no longer")
    row_us: int = Field(0, ge=0, description="how much longer each request makes a pass")
    ramp_seconds: float = Field(1.0, ge=0, description="time over which the requests begin")
    model: str = Field("models/tiny-edit", description="directory with a tokenizer")


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code: 1 if a text came out wrong."""
    return run_command(OverheadSettings, arguments, measure, describe)


def measure(settings: OverheadSettings) -> dict[str, Any]:
    """Returns the report: of one run if the pass time is given, of the peak and a paced run if not.

    At the peak whatever is sent waits for a processor, so that latencies say nothing of a service.
    """
    if settings.pass_ms is not None:
        return _measure(settings, settings.pass_ms)
    peak, paced = _measure(settings, 0.0), _measure(settings, PACED_MS)
    return {
        "streams": settings.streams,
        "predictions": settings.predictions,
        "tokens_per_second": peak["tokens_per_second"],
        "cpu_us_per_token": peak["cpu_us_per_token"],
        "added_latency_ms": paced["added_latency_ms"],
        "all_right": peak["all_right"] and paced["all_right"],
        "peak": peak,
        "paced": paced,
    }


def _measure(settings: OverheadSettings, pass_ms: float) -> dict[str, Any]:
    """Runs the services and the load, and returns the report of that run."""
    tokenizer = load_tokenizer(f"{settings.model}/tokenizer.json")
    truths, predictions = _make_truths(settings, tokenizer)
    texts = [tokenizer.decode(truth, skip_special_tokens=False) for truth in truths]
    predictions = predictions or texts
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with _services(settings, pass_ms, truths, directory) as (port, metrics_port):
            # What only the first requests cost is no part of what serving costs.
            seeds = range(settings.streams + 1, 2 * settings.streams + 1)
            warm_up = settings.model_copy(update={"tokens": min(_WARM_UP_TOKENS, settings.tokens)})
            _run_load(warm_up, port, predictions, directory / "warm_up.json", seeds)
            rests_before = _count_rests(metrics_port)
            pids = find_children(list(_SERVICES.values()))
            before = {name: read_cpu_seconds(pids[module]) for name, module in _SERVICES.items()}
            machine = read_machine_seconds()
            seeds = range(1, settings.streams + 1)
            seconds = _run_load(settings, port, predictions, directory / "arrivals.json", seeds)
            after = {name: read_cpu_seconds(pids[module]) for name, module in _SERVICES.items()}
            stolen_share = find_stolen_share(machine, read_machine_seconds())
            rests = _count_rests(metrics_port)
        answers = json.loads((directory / "arrivals.json").read_text())
        emissions = read_emissions(directory / "emissions.jsonl")
    num_tokens = settings.streams * len(truths[0])
    lengths = [_text_lengths(tokenizer, truth) for truth in truths]
    latencies = sorted(
        latency
        for seed, answer in zip(seeds, answers, strict=True)
        for latency in find_latencies(emissions[seed], lengths[seed % len(truths)], answer)
    )
    rested, woken = (after - before for after, before in zip(rests, rests_before, strict=True))
    num_passes = sum(len(set(emissions[seed])) for seed in seeds)
    return {
        "streams": settings.streams,
        "predictions": settings.predictions,
        "answers": settings.answers,
        "follow": settings.follow,
        "pass_ms": pass_ms,
        "output_tokens": num_tokens,
        "tokens_per_pass": round(num_tokens / num_passes, 3),
        "seconds": round(seconds, 3),
        "tokens_per_second": round(num_tokens / seconds, 1),
        "cpu_us_per_token": {
            name: round(1e6 * (after[name] - before[name]) / num_tokens, 2) for name in _SERVICES
        },
        "added_latency_ms": {
            "p50": round(latencies[len(latencies) // 2] / 1e6, 3),
            "p99": round(latencies[len(latencies) * 99 // 100] / 1e6, 3),
            "max": round(latencies[-1] / 1e6, 3),
        },
        "following": {"woken": woken, "rested": rested},
        "stolen_share": round(stolen_share, 3),
        "all_right": all(
            "".join(piece for _, piece in answer) == texts[seed % len(texts)]
            for seed, answer in zip(seeds, answers, strict=True)
        ),
    }


def find_latencies(
    sent_ns: list[int], lengths: list[int], answer: list[tuple[int, str]]
) -> list[int]:
    """Returns how long each token took to the client, in nanoseconds.

    Args:
        sent_ns: When the worker sent each token.
        lengths: Length of the text up to and with each token, in characters.
        answer: The pieces of text that arrived, and when.

    Raises:
        ValueError: Fewer tokens arrived than there are.
    """
    arrived = list(accumulate(len(text) for _, text in answer))
    if not arrived or arrived[-1] < lengths[-1]:
        raise ValueError("an answer is shorter than what the worker sent")
    return [
        answer[bisect_left(arrived, length)][0] - now_ns
        for now_ns, length in zip(sent_ns, lengths, strict=True)
    ]


def _make_truths(
    settings: OverheadSettings, tokenizer: Tokenizer
) -> tuple[list[list[int]], list[str]]:
    """Returns the tokens of the answers, one for all streams or one each, and what predicts them.

    Nothing does if that is the answers themselves.
    """
    if settings.answers == "functions":
        num_functions = settings.tokens
        text = "\n\n".join(functions(num_functions, 0))
        return [tokenizer.encode(text, add_special_tokens=False).ids[: settings.tokens]], []
    if settings.answers == "edits":
        return _join_edits(settings, tokenizer)
    special = tokenizer.get_added_tokens_decoder()
    # A part of a character has no text of its own, whose arrival could be seen.
    whole = [
        token_id
        for token_id in range(tokenizer.get_vocab_size())
        if token_id not in special and "\ufffd" not in tokenizer.decode([token_id])
    ]
    return [
        random.Random(number).choices(whole, k=settings.tokens)  # noqa: S311
        for number in range(settings.streams)
    ], []


def _join_edits(
    settings: OverheadSettings, tokenizer: Tokenizer
) -> tuple[list[list[int]], list[str]]:
    """Returns answers of as many edits as their tokens need, others for each stream."""
    # A part of a character has no text of its own, whose arrival could be seen.
    edits = [
        (str(row["before"]), str(row["after"]))
        for _, row in read_json_lines(Path(settings.pairs), "--pairs")
        if row["after"].isascii()
    ]
    truths: list[list[int]] = []
    predictions: list[str] = []
    for number in range(settings.streams):
        truth, before = list[int](), list[str]()
        for offset in count():
            if len(truth) >= settings.tokens:
                break
            edit = edits[(number + offset * settings.streams) % len(edits)]
            before.append(edit[0])
            truth += tokenizer.encode(edit[1], add_special_tokens=False).ids
        truths.append(truth[: settings.tokens])
        predictions.append("".join(before))
    return truths, predictions


def _count_rests(metrics_port: int) -> tuple[int, int]:
    """Returns how often awake requests came to rest, and how often one was woken."""
    metrics = read_metrics(metrics_port)
    rested, woken = (
        metrics[f"optimist_scheduler_requests_{name}_total"] for name in ("rested", "woken")
    )
    return int(rested), int(woken)


def _text_lengths(tokenizer: Tokenizer, truth: list[int]) -> list[int]:
    """Returns how long the text is after each token."""
    texts = (tokenizer.decode([token], skip_special_tokens=False) for token in truth)
    return list(accumulate(len(text) for text in texts))


@contextmanager
def _services(
    settings: OverheadSettings, pass_ms: float, truths: list[list[int]], directory: Path
) -> Iterator[tuple[int, int]]:
    """Runs all services; yields the gateway's port, and that of the scheduler's metrics."""
    path = directory / "truths.jsonl"
    path.write_text("\n".join(json.dumps(truth) for truth in truths))
    port, metrics_port = free_ports(2)
    serve = ServeSettings(model=settings.model, port=port, proposers=1)
    with ExitStack() as stack:
        worker = stack.enter_context(
            simulated_worker(
                step_us=round(1000 * pass_ms),
                token_us=settings.token_us,
                free_tokens=settings.free_tokens,
                row_us=settings.row_us,
                looks_up="true",
                truths=str(path),
                emissions=str(directory / "emissions.jsonl"),
                max_num_seqs=settings.streams,
                max_num_batched_tokens=256 * settings.streams,
            )
        )
        flags = {
            "scheduler": [
                *("--workers", worker, "--follow", settings.follow),
                *("--metrics-port", str(metrics_port)),
            ],
            "gateway": ["--max-num-requests", str(max(512, settings.streams))],
        }
        specs = stack_specs(serve, flags, without={"worker"})
        stack.enter_context(running(specs))
        yield int(address_of(specs, "gateway").rsplit(":", 1)[1]), metrics_port


def _run_load(
    settings: OverheadSettings,
    port: int,
    predictions: Sequence[str],
    output: Path,
    seeds: Iterable[int],
) -> float:
    """Runs the load in a process of its own; returns how long it took, in seconds."""
    body: dict[str, Any] = {
        "model": Path(settings.model).name,
        "messages": [{"role": "user", "content": "Write functions."}],
        "max_tokens": settings.tokens,
        "temperature": 0,
        "stream": True,
    }
    bodies = [body | {"seed": seed} for seed in seeds]
    if settings.predictions:
        for each in bodies:
            content = predictions[each["seed"] % len(predictions)]
            each["prediction"] = {"type": "content", "content": content}
    task = {
        "port": port,
        "ramp_seconds": settings.ramp_seconds,
        "output": str(output),
        "bodies": bodies,
    }
    started = perf_counter()
    subprocess.run(
        [sys.executable, "-m", "optimist_bench.overhead.load"],
        input=json.dumps(task).encode(),
        check=True,
    )
    return perf_counter() - started


def describe(report: dict[str, Any]) -> str:
    """Returns the report as a table, with a row for each run."""
    runs = [report["peak"], report["paced"]] if "peak" in report else [report]
    costs = [f"{name} us" for name in _SERVICES]
    rates, latencies = ("pass ms", "tokens/s", "tokens/pass"), ("p50 ms", "p99 ms")
    header = (*rates, *costs, *latencies, "woken", "rested", "stolen")
    return format_table(header, [_row(run) for run in runs])


def _row(run: dict[str, Any]) -> tuple[float, ...]:
    latency = run["added_latency_ms"]
    rates = run["pass_ms"], run["tokens_per_second"], run["tokens_per_pass"]
    return (
        *rates,
        *run["cpu_us_per_token"].values(),
        latency["p50"],
        latency["p99"],
        run["following"]["woken"],
        run["following"]["rested"],
        run["stolen_share"],
    )
