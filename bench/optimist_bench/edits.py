"""`optimist bench edits`: unseen edits, each answered with and without its prediction."""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from optimist_bench.harness.command import run_command
from optimist_bench.harness.services import running_services
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
    plain_seconds: float
    predicted_seconds: float


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    return run_command(EditsSettings, arguments, _measure, partial(json.dumps, indent=2))


def _measure(settings: EditsSettings) -> dict[str, Any]:
    edits = unseen_edits(settings.edits, settings.seed)
    with _gateway(settings) as url:
        client = GatewayClient(url)
        try:
            return summarise(measure(client, edits))
        finally:
            client.close()


def _gateway(settings: EditsSettings) -> Any:
    if settings.url:
        return nullcontext(settings.url)
    return running_services(ServeSettings(model=settings.model, port=free_ports(1)[0]))


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
    seconds: float


def _answer(client: GatewayClient, model: str, edit: Edit, *, predicted: bool) -> _Answer:
    prediction = edit.before if predicted else None
    started = time.perf_counter()
    answer = client.chat(ChatRequest(model, edit.messages(), prediction))
    chunks = list(answer.chunks)
    seconds = time.perf_counter() - started
    details = answer.usage["completion_tokens_details"]
    return _Answer(
        text="".join(chunk.text for chunk in chunks),
        token_ids=[token for chunk in chunks for token in chunk.token_ids],
        num_passes=answer.usage["num_passes"],
        accepted=details["accepted_prediction_tokens"],
        seconds=seconds,
    )


def summarise(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Returns the report: totals over all edits, and exact matches by kind."""
    kinds = sorted({one.kind for one in measurements})
    of_kind = {kind: [one for one in measurements if one.kind == kind] for kind in kinds}
    plain = sum(one.plain_seconds for one in measurements)
    predicted = sum(one.predicted_seconds for one in measurements)
    num_tokens = sum(one.num_tokens for one in measurements)
    return {
        "edits": len(measurements),
        "exact_match": round(_share([one.exact for one in measurements]), 4),
        "identical_to_plain": all(one.identical for one in measurements),
        "tokens_per_pass": round(num_tokens / sum(one.num_passes for one in measurements), 3),
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
