"""Asks an engine all prompts of a workload, and notes when what arrived."""

import urllib.error
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import httpx

from optimist_bench.engines.workloads import Prompt
from optimist_bench.harness.process_time import find_stolen_share, read_machine_seconds
from optimist_bench.harness.services import read_metrics
from optimist_cli.client import ChatRequest, GatewayClient
from optimist_common.errors import SetupError


@dataclass(frozen=True)
class Answer:
    """One streamed answer."""

    text: str
    num_tokens: int
    first_seconds: float
    """From the request to the first text; to the end if there was none."""


@dataclass(frozen=True)
class Round:
    """All prompts answered once."""

    seconds: float
    answers: list[Answer]
    stolen_share: float
    """Processor time that the host of a virtual machine took, of what was asked for."""
    front_seconds: float | None = None
    """Processor time of the process that answers HTTP, as its metrics say; None without any."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(answer.num_tokens for answer in self.answers)

    @property
    def tokens_per_second(self) -> float:
        """Of all answers together, their prompts' time included."""
        return self.num_tokens / self.seconds

    @property
    def front_us_per_token(self) -> float | None:
        """Processor time of the process that answers HTTP, in microseconds."""
        return None if self.front_seconds is None else 1e6 * self.front_seconds / self.num_tokens

    @property
    def first_seconds(self) -> float:
        """Median of the time to the first text."""
        return median(answer.first_seconds for answer in self.answers)


class Asker:
    """A client of one engine."""

    def __init__(self, name: str, url: str) -> None:
        self._name, self._port = name, httpx.URL(url).port or 80
        self._client = GatewayClient(url)
        self._model = self._client.model()

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def ask_all(self, prompts: Sequence[Prompt], num_streams: int, max_tokens: int) -> Round:
        """Asks all prompts, at most `num_streams` at a time.

        Raises:
            SetupError: A request failed; the message names the engine.
        """
        machine, before = read_machine_seconds(), self._read_front_seconds()
        with ThreadPoolExecutor(num_streams) as pool:
            started = perf_counter()
            answers = list(pool.map(lambda each: self._ask(each, max_tokens), prompts))
            seconds = perf_counter() - started
        stolen_share = find_stolen_share(machine, read_machine_seconds())
        after = self._read_front_seconds()
        front_seconds = None if before is None or after is None else after - before
        return Round(seconds, answers, stolen_share, front_seconds)

    def _read_front_seconds(self) -> float | None:
        try:
            return read_metrics(self._port).get("process_cpu_seconds_total")
        except urllib.error.HTTPError:
            return None

    def _ask(self, prompt: Prompt, max_tokens: int) -> Answer:
        messages = [{"role": "user", "content": prompt.text}]
        temperature = 0.0 if prompt.seed is None else 1.0
        request = ChatRequest(
            self._model, messages, prompt.prediction, max_tokens, temperature, prompt.seed
        )
        started = perf_counter()
        first, texts = None, []
        try:
            answer = self._client.chat(request)
            for chunk in answer.chunks:
                if chunk.text and first is None:
                    first = perf_counter() - started
                texts.append(chunk.text)
        except SetupError as error:
            raise SetupError(f"{self._name}: {error}") from None
        if first is None:
            first = perf_counter() - started
        return Answer("".join(texts), answer.usage["completion_tokens"], first)
