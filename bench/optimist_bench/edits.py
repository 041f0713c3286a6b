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
class Measurement:
    """One edit answered twice."""

    kind: str
    exact: bool
    """The answer with prediction is the expected text."""
    identical: bool
    """Both answers have the same tokens."""
    num_tokens: int
    num_passes: int
    """Forward passes that emitted the tokens of the answer with prediction."""
    accepted: int
    num_drafted: int
    """Drafts that were verified for the answer with prediction, whatever their source."""
    num_accepted: int
    """Those that were accepted."""
    plain_seconds: float
    predicted_seconds: float


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
        predicted = _answer(client, model, edit, predicted=True)
        measurements.append(
            Measurement(
                kind=edit.kind,
                exact=predicted.text == edit.after,
                identical=predicted.token_ids == plain.token_ids,
                num_tokens=len(predicted.token_ids),
                num_passes=predicted.num_passes,
                accepted=predicted.accepted,
                num_drafted=predicted.num_drafted,
                num_accepted=predicted.num_accepted,
                plain_seconds=plain.seconds,
                predicted_seconds=predicted.seconds,
            )
        )
        if number % 20 == 0:
            print(f"{number} of {len(edits)} edits", file=sys.stderr)
    return measurements


@dataclass(frozen=True)
class _Answer:
    text: str
    token_ids: list[int]
    num_passes: int
    accepted: int
    num_drafted: int
    num_accepted: int
    seconds: float


def _answer(client: GatewayClient, model: str, edit: Edit, *, predicted: bool) -> _Answer:
    prediction = edit.before if predicted else None
    started = time.perf_counter()
    request = ChatRequest(model, edit.messages(), prediction, include_speculation=True)
    answer = client.chat(request)
    chunks = list(answer.chunks)
    seconds = time.perf_counter() - started
    details, speculation = answer.usage["completion_tokens_details"], answer.usage["speculation"]
    return _Answer(
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
    kinds = sorted({one.kind for one in measurements})
    of_kind = {kind: [one for one in measurements if one.kind == kind] for kind in kinds}
    plain = sum(one.plain_seconds for one in measurements)
    predicted = sum(one.predicted_seconds for one in measurements)
    num_tokens = sum(one.num_tokens for one in measurements)
    rates = [one.num_accepted / one.num_drafted for one in measurements if one.num_drafted]
    return {
        "edits": len(measurements),
        "exact_match": round(_share([one.exact for one in measurements]), 4),
        "identical_to_plain": all(one.identical for one in measurements),
        "tokens_per_pass": round(num_tokens / sum(one.num_passes for one in measurements), 3),
        "acceptance_rate_mean": round(sum(rates) / max(len(rates), 1), 4),
        "acceptance_rate_p50": round(median(rates or [0.0]), 4),
        "plain_seconds": round(plain, 3),
        "predicted_seconds": round(predicted, 3),
        "speedup": round(plain / predicted, 3),
        "output_tokens": num_tokens,
        "accepted_prediction_tokens": sum(one.accepted for one in measurements),
        "by_kind": {
            kind: {
                "edits": len(ones),
                "exact_match": round(_share([one.exact for one in ones]), 4),
                "tokens_per_pass": round(
                    sum(one.num_tokens for one in ones) / sum(one.num_passes for one in ones), 3
                ),
            }
            for kind, ones in of_kind.items()
        },
    }


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)
