"""Asks an engine all prompts of a workload, and notes when what arrived."""

import urllib.error
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
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
    """All prompts answered once, each request of a conversation."""

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

    def ask_all(
        self, prompts: Sequence[Prompt], num_streams: int, max_tokens: int, cache_salt: str = ""
    ) -> Round:
        """Asks all prompts, at most `num_streams` at a time.

        Args:
            prompts: Requests and conversations.
            num_streams: Prompts at a time; the requests of a conversation follow each other.
            max_tokens: Most tokens of an answer, or of all answers of a conversation.
            cache_salt: Rounds of different ones share no cached prompts; empty: none is sent.

        Raises:
            SetupError: A request failed; the message names the engine.
        """
        machine, before = read_machine_seconds(), self._read_front_seconds()
        with ThreadPoolExecutor(num_streams) as pool:
            started = perf_counter()
            asked = pool.map(lambda each: self._converse(each, max_tokens, cache_salt), prompts)
            answers = list(chain.from_iterable(asked))
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

    def _converse(self, prompt: Prompt, max_tokens: int, cache_salt: str) -> list[Answer]:
        conversation = prompt.conversation()
        return [
            self._ask(
                ChatRequest(
                    self._model,
                    messages,
                    prompt.prediction,
                    max(max_tokens // len(conversation), 1),
                    temperature=0.0 if prompt.seed is None else 1.0,
                    seed=prompt.seed,
                    cache_salt=cache_salt or None,
                    schema=prompt.schema,
                    tools=prompt.tools,
                )
            )
            for messages in conversation
        ]

    def _ask(self, request: ChatRequest) -> Answer:
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
