"""One way to answer prompts, with what it takes: ours through the services, or a peer."""

import os
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import httpx

from optimist_bench.harness.services import running
from optimist_bench.harness.stack import stack_specs
from optimist_bench.peers.engine import TokenIds
from optimist_bench.peers.process import PeerProcess
from optimist_cli.serve.ports import free_ports
from optimist_cli.serve.settings import ServeSettings
from optimist_common.draft_source import DraftSource
from optimist_common.errors import SetupError

TIMEOUT_SECONDS = 600.0
_TARGET = DraftSource.TARGET.label

_DRAFTED = re.compile(r"^optimist_scheduler_drafted_tokens_total(?:\{.*\})? (\S+)$", re.MULTILINE)


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
    metrics_url: str
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
        with urllib.request.urlopen(self.metrics_url, timeout=10) as response:  # noqa: S310 (ours)
            text = response.read().decode()
        # A line for each source of drafts that there was.
        return sum(int(float(value)) for value in _DRAFTED.findall(text))


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
        stack = Stack(
            f"http://{serve.host}:{port}", f"http://{serve.host}:{metrics_port}/metrics", max_tokens
        )
        try:
            yield stack
        finally:
            stack.close()


def children_cpu_seconds() -> float | None:
    """Returns the processor time that all children of this process have used, themselves.

    Of contenders that run in turn, each in processes of its own, the one at work has used what was
    added. None where there is no /proc.
    """
    if not Path("/proc/self/stat").exists():
        return None
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
