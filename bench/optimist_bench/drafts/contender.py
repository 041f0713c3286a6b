"""Ways to answer prompts, ours through the services and peers, measured in turn."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, Protocol

import httpx

from optimist_bench.harness.process_time import children_cpu_seconds
from optimist_bench.harness.services import read_metrics, running, stack_specs
from optimist_bench.peers.process import PeerProcess, TokenIds
from optimist_cli.serve.ports import free_ports
from optimist_cli.serve.settings import ServeSettings
from optimist_common.drafts import DraftSource
from optimist_common.errors import SetupError

TIMEOUT_SECONDS = 600.0
_TARGET = DraftSource.TARGET.label

_DRAFTED = "optimist_scheduler_drafted_tokens_total"


@dataclass(frozen=True)
class Run:
    """All prompts answered once."""

    answers: list[TokenIds]
    seconds: float
    num_passes: int = 0
    """Forward passes that emitted the tokens, of each request by itself; 0 if unknown."""
    num_drafted: int = 0
    """Drafts that were verified."""
    tokens_by_source: Mapping[str, int] = field(default_factory=dict)
    """Tokens by what drafted them, or `target`; empty if unknown."""

    @property
    def num_accepted(self) -> int:
        """Tokens that had been drafted."""
        return sum(self.tokens_by_source.values()) - self.tokens_by_source.get(_TARGET, 0)


class Contender(Protocol):
    """Answers prompts greedily."""

    def answer(
        self, prompts: Sequence[TokenIds], concurrency: int, predictions: Sequence[TokenIds] = ()
    ) -> Run:
        """Answers all prompts, at most `concurrency` at a time."""
        ...


@dataclass(frozen=True)
class Peer:
    """A peer's process."""

    process: PeerProcess

    def answer(
        self, prompts: Sequence[TokenIds], concurrency: int, predictions: Sequence[TokenIds] = ()
    ) -> Run:
        """Answers without predictions, which no peer takes; raises PeerError."""
        answers, seconds = self.process.answer(prompts, concurrency)
        return Run(answers, seconds)


@dataclass(frozen=True)
class StackSettings:
    """How the services of one contender are started."""

    model: str
    num_threads: int
    draft_width: str
    """How the scheduler chooses how much to draft."""
    worker_flags: tuple[str, ...] = ()
    with_proposer: bool = False


@dataclass
class Stack:
    """Our services, asked by HTTP with tokens for prompts."""

    url: str
    metrics_port: int
    """Of the scheduler."""
    max_tokens: int
    _http: httpx.Client = field(init=False)
    _model: str = field(init=False)

    def __post_init__(self) -> None:
        self._http = httpx.Client(base_url=self.url, timeout=TIMEOUT_SECONDS, trust_env=False)
        self._model = self._get("/v1/models")["data"][0]["id"]

    def answer(
        self, prompts: Sequence[TokenIds], concurrency: int, predictions: Sequence[TokenIds] = ()
    ) -> Run:
        """Answers all prompts; raises SetupError if a request fails."""
        bodies = [self._body(prompt) for prompt in prompts]
        for body, prediction in zip(bodies, predictions, strict=False):
            body["predicted_token_ids"] = prediction
        before = self._count_drafted()
        with ThreadPoolExecutor(concurrency) as pool:
            started = perf_counter()
            responses = list(pool.map(self._post, bodies))
            seconds = perf_counter() - started
        usages = [response["usage"] for response in responses]
        return Run(
            answers=[response["choices"][0]["token_ids"] for response in responses],
            seconds=seconds,
            num_passes=sum(usage["num_passes"] for usage in usages),
            num_drafted=self._count_drafted() - before,
            tokens_by_source=sum(map(_count_by_source, usages), Counter()),
        )

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _body(self, prompt: TokenIds) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": prompt,
            "temperature": 0.0,
            "max_tokens": self.max_tokens,
            "return_token_ids": True,
        }

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        response = self._http.post("/v1/completions", json=body)
        if response.is_error:
            raise SetupError(f"{self.url} answered {response.status_code}: {response.text[:200]}")
        answer: dict[str, Any] = response.json()
        return answer

    def _get(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._http.get(path).json()
        return answer

    def _count_drafted(self) -> int:
        # One for each source of drafts that there was.
        metrics = read_metrics(self.metrics_port).items()
        return int(sum(value for name, value in metrics if name.startswith(_DRAFTED)))


def _count_by_source(usage: dict[str, Any]) -> Counter[str]:
    return Counter(usage["completion_tokens_details"]["tokens_by_source"])


@contextmanager
def running_stack(settings: StackSettings, max_tokens: int) -> Iterator[Stack]:
    """Starts the services of a contender; ends them afterwards.

    Raises:
        SetupError: A service could not start.
    """
    port, metrics_port = free_ports(2)
    serve = ServeSettings(model=settings.model, port=port)
    flags = {
        "worker": ["--num-threads", str(settings.num_threads), *settings.worker_flags],
        "scheduler": [
            *("--metrics-port", str(metrics_port)),
            *("--draft-width", settings.draft_width),
        ],
    }
    # What has no prediction is answered without a proposer's drafts.
    flags["scheduler"] += (
        ["--follow", "predictions"] if settings.with_proposer else ["--proposers", ""]
    )
    specs = stack_specs(serve, flags, without=() if settings.with_proposer else ("proposer",))
    with running(specs):
        stack = Stack(f"http://{serve.host}:{port}", metrics_port, max_tokens)
        try:
            yield stack
        finally:
            stack.close()


BASELINE = "baseline"
PREDICTED = "predicted"
TOGETHER = "together"
NUM_WARM_UP = 2
"""Prompts that each contender answers before, for each number at a time."""

Role = Literal["baseline", "predicted", "together", "source", "peer"]


@dataclass(frozen=True)
class Entrant:
    """A contender under the name that it has in the report."""

    name: str
    role: Role
    contender: Contender
    with_predictions: bool = False


@dataclass
class Score:
    """What an entrant reached."""

    entrant: Entrant
    runs: dict[int, list[Run]] = field(default_factory=dict)
    """By how many prompts were answered at a time."""
    cpu_seconds: dict[int, list[float]] = field(default_factory=dict)
    """Processor time of each run, of all its processes; empty where it is unknown."""

    def seconds(self, concurrency: int) -> float:
        """Returns the wall time of the best run."""
        return min(run.seconds for run in self.runs[concurrency])

    def best_cpu_seconds(self, concurrency: int) -> float | None:
        """Returns the least processor time of a run, if known."""
        return min(self.cpu_seconds.get(concurrency, []), default=None)


@dataclass(frozen=True)
class Match:
    """Who answers the same prompts in the least time."""

    prompts: list[TokenIds]
    predictions: list[TokenIds]
    """For the entrants that take them, one per prompt."""
    concurrencies: tuple[int, ...]
    """How many prompts are answered at a time; measured one after the other."""

    def play(self, entrants: Sequence[Entrant], num_rounds: int) -> list[Score]:
        """Lets all answer all prompts in turn, round by round, every second round backwards.

        So what changes on the machine meanwhile meets all alike.
        """
        scores = [Score(entrant) for entrant in entrants]
        for score in scores:
            _say(f"warming up {score.entrant.name}")
            for concurrency in self.concurrencies:
                self._run(score.entrant, concurrency, max(NUM_WARM_UP, concurrency))
        for number in range(num_rounds):
            for score in scores if number % 2 == 0 else scores[::-1]:
                _say(f"round {number + 1} of {num_rounds}: {score.entrant.name}")
                for concurrency in self.concurrencies:
                    before = children_cpu_seconds()
                    run = self._run(score.entrant, concurrency, len(self.prompts))
                    after = children_cpu_seconds()
                    score.runs.setdefault(concurrency, []).append(run)
                    if before is not None and after is not None:
                        score.cpu_seconds.setdefault(concurrency, []).append(after - before)
        return scores

    def _run(self, entrant: Entrant, concurrency: int, num_prompts: int) -> Run:
        predictions = self.predictions[:num_prompts] if entrant.with_predictions else []
        return entrant.contender.answer(self.prompts[:num_prompts], concurrency, predictions)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
