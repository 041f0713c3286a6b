"""`optimist bench edits`: unseen edits, each answered with and without its prediction."""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, ClassVar

from pydantic import Field

from optimist_bench.harness.command import run_command
from optimist_bench.harness.services import read_metrics, running, stack_specs
from optimist_cli.client import ChatRequest, GatewayClient
from optimist_cli.serve.ports import free_ports
from optimist_cli.serve.settings import ServeSettings
from optimist_common.settings import ServiceSettings
from optimist_training.data.edits import Edit, unseen_edits


class EditsSettings(ServiceSettings):
    """Measures edits of code the bundled model has not seen, with and without prediction."""

    section: ClassVar[str] = "bench_edits"

    edits: int = Field(120, ge=1, le=10_000, description="number of edits")
    seed: int = Field(0, ge=0, description="seed of the choice of edits")
    url: str = Field("", description="gateway to measure; empty starts all services itself")
    model: str = Field("models/tiny-edit", description="model that is served if no --url is given")


@dataclass(frozen=True)
class Answer:
    """What came, in how many passes and seconds."""

    text: str
    token_ids: list[int]
    num_passes: int
    accepted: int
    """Tokens of the prediction."""
    num_drafted: int
    """Drafts that were verified, whatever their source."""
    num_accepted: int
    """Those that were accepted."""
    seconds: float


@dataclass(frozen=True)
class Measurement:
    """One edit answered twice."""

    edit: Edit
    plain: Answer
    predicted: Answer

    @property
    def is_exact(self) -> bool:
        """Whether the answer with prediction is the expected text."""
        return self.predicted.text == self.edit.after


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    return run_command(EditsSettings, arguments, _measure, partial(json.dumps, indent=2))


def _measure(settings: EditsSettings) -> dict[str, Any]:
    edits = unseen_edits(settings.edits, settings.seed)
    with _gateway(settings) as (url, metrics_ports):
        client = GatewayClient(url)
        try:
            return summarise(measure(client, edits)) | find_times(metrics_ports)
        finally:
            client.close()


@contextmanager
def _gateway(settings: EditsSettings) -> Iterator[tuple[str, list[int]]]:
    """Yields the URL, and the ports with the metrics of worker and proposer if they are ours."""
    if settings.url:
        yield settings.url, []
        return
    port, *metrics_ports = free_ports(3)
    flags = {
        name: ("--metrics-port", str(each))
        for name, each in zip(("worker", "proposer"), metrics_ports, strict=True)
    }
    print(f"starting the services with {settings.model}", file=sys.stderr)
    served = ServeSettings(model=settings.model, port=port, proposers=1)
    with running(stack_specs(served, flags)):
        yield f"http://127.0.0.1:{port}", metrics_ports


_TIMES = {
    "proposer_ms_per_batch": "optimist_proposer_batch_seconds",
    "draft_ms_per_pass": "optimist_worker_draft_seconds",
    "verify_ms_per_pass": "optimist_worker_verify_seconds",
}


def find_times(metrics_ports: Sequence[int]) -> dict[str, float]:
    """Returns what proposers, drafters and passes with drafts have taken in the mean, in ms."""
    samples: defaultdict[str, float] = defaultdict(float)
    for port in metrics_ports:
        for name, value in read_metrics(port).items():
            samples[name.partition("{")[0]] += value
    return {
        key: round(1e3 * samples[f"{name}_sum"] / samples[f"{name}_count"], 3)
        for key, name in _TIMES.items()
        if samples[f"{name}_count"]
    }


def measure(client: GatewayClient, edits: Sequence[Edit]) -> list[Measurement]:
    """Answers every edit without and with prediction, in turn, so that both meet the same noise."""
    model = client.model()
    measurements = []
    _answer(client, model, edits[0], predicted=False)  # warm-up, not measured
    for number, edit in enumerate(edits, 1):
        plain = _answer(client, model, edit, predicted=False)
        measurements.append(Measurement(edit, plain, _answer(client, model, edit, predicted=True)))
        if number % 20 == 0:
            print(f"{number} of {len(edits)} edits", file=sys.stderr)
    return measurements


def _answer(client: GatewayClient, model: str, edit: Edit, *, predicted: bool) -> Answer:
    prediction = edit.before if predicted else None
    started = time.perf_counter()
    request = ChatRequest(model, edit.messages(), prediction, include_speculation=True)
    answer = client.chat(request)
    chunks = list(answer.chunks)
    seconds = time.perf_counter() - started
    details, speculation = answer.usage["completion_tokens_details"], answer.usage["speculation"]
    return Answer(
        text="".join(chunk.text for chunk in chunks),
        token_ids=[token for chunk in chunks for token in chunk.token_ids],
        num_passes=answer.usage["num_passes"],
        accepted=details["accepted_prediction_tokens"],
        num_drafted=speculation["num_drafted_tokens"],
        num_accepted=speculation["num_accepted_tokens"],
        seconds=seconds,
    )


def summarise(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Returns the report: totals over all edits, and exact matches by kind."""
    kinds = sorted({one.edit.kind for one in measurements})
    of_kind = {kind: [one for one in measurements if one.edit.kind == kind] for kind in kinds}
    predicted = [one.predicted for one in measurements]
    seconds = sum(one.seconds for one in predicted)
    plain_seconds = sum(one.plain.seconds for one in measurements)
    rates = [one.num_accepted / one.num_drafted for one in predicted if one.num_drafted]
    return {
        **_figures(measurements),
        "identical_to_plain": all(
            one.predicted.token_ids == one.plain.token_ids for one in measurements
        ),
        "acceptance_rate_mean": round(sum(rates) / max(len(rates), 1), 4),
        "acceptance_rate_p50": round(median(rates or [0.0]), 4),
        "plain_seconds": round(plain_seconds, 3),
        "predicted_seconds": round(seconds, 3),
        "speedup": round(plain_seconds / seconds, 3),
        "output_tokens": sum(len(one.token_ids) for one in predicted),
        "accepted_prediction_tokens": sum(one.accepted for one in predicted),
        "by_kind": {kind: _figures(ones) for kind, ones in of_kind.items()},
    }


def _figures(measurements: Sequence[Measurement]) -> dict[str, Any]:
    num_tokens = sum(len(one.predicted.token_ids) for one in measurements)
    num_passes = sum(one.predicted.num_passes for one in measurements)
    return {
        "edits": len(measurements),
        "exact_match": round(sum(one.is_exact for one in measurements) / len(measurements), 4),
        "tokens_per_pass": round(num_tokens / num_passes, 3),
    }
