"""Asks an engine all prompts of a workload, and notes when what arrived."""

import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from time import perf_counter
from typing import Any

import httpx

from optimist_bench.engines.options import EngineOptions
from optimist_bench.engines.servers import running_engine
from optimist_bench.engines.workloads import Prompt
from optimist_bench.harness.process_time import find_stolen_share, read_machine_seconds
from optimist_bench.harness.services import read_metrics
from optimist_cli.client import ChatRequest, GatewayClient, RefusedRequestError
from optimist_common.errors import SetupError

_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Answer:
    """One streamed answer."""

    text: str
    num_tokens: int
    first_seconds: float
    """From the request to the first text; to the end if there was none."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    """As the engine reports it."""
    is_cut: bool = False
    """Whether it ended for its number of tokens."""
    refusal: str = ""
    """Why the engine did not answer this request."""


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

    def __init__(
        self,
        name: str,
        url: str,
        *,
        api_key: str = "",
        model: str = "",
        metrics_port: int | None = None,
    ) -> None:
        """Connects.

        Args:
            name: Of the engine, for errors.
            url: Where it listens, with or without `/v1`.
            api_key: The key that it asks for; empty for none.
            model: What it calls the model; empty for the first that it names.
            metrics_port: Of this machine, with the metrics of the process that answers HTTP.

        Raises:
            SetupError: It does not say what it serves.
        """
        self._name, self._metrics_port = name, metrics_port
        self._client = GatewayClient(url, api_key)
        self.model = model or self._client.model()

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
            SetupError: A request failed or was refused; the message names the engine.
        """
        done = self.run(
            [self._requests(prompt, max_tokens, cache_salt) for prompt in prompts], num_streams
        )
        for answer in done.answers:
            if answer.refusal:
                raise SetupError(answer.refusal)
        return done

    def run(self, conversations: Sequence[Sequence[ChatRequest]], num_streams: int) -> Round:
        """Sends all requests, those of a conversation one after the other.

        A request that the engine refuses costs no other one its answer.

        Args:
            conversations: Requests that follow each other.
            num_streams: Conversations at a time.

        Raises:
            SetupError: A request failed; the message names the engine.
        """
        machine, before = read_machine_seconds(), self._read_front_seconds()
        with ThreadPoolExecutor(num_streams) as pool:
            started = perf_counter()
            asked = pool.map(lambda each: [self._ask(request) for request in each], conversations)
            answers = list(chain.from_iterable(asked))
            seconds = perf_counter() - started
        stolen_share = find_stolen_share(machine, read_machine_seconds())
        after = self._read_front_seconds()
        front_seconds = None if before is None or after is None else after - before
        return Round(seconds, answers, stolen_share, front_seconds)

    def warm_up(self, streams: Sequence[int]) -> None:
        """Asks some questions with each number of streams."""
        for each in streams:
            prompts = [Prompt(f"Count to {number}.") for number in range(each)]
            self.ask_all(prompts, each, _WARM_UP_TOKENS)

    def _read_front_seconds(self) -> float | None:
        if self._metrics_port is None:
            return None
        try:
            return read_metrics(self._metrics_port).get("process_cpu_seconds_total")
        except urllib.error.HTTPError:
            return None

    def _requests(self, prompt: Prompt, max_tokens: int, cache_salt: str) -> list[ChatRequest]:
        conversation = prompt.conversation()
        return [
            ChatRequest(
                self.model,
                messages,
                prompt.prediction,
                max(max_tokens // len(conversation), 1),
                temperature=0.0 if prompt.seed is None else 1.0,
                seed=prompt.seed,
                cache_salt=cache_salt or None,
                schema=prompt.schema,
                tools=prompt.tools,
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
        except RefusedRequestError as error:
            return Answer("", 0, perf_counter() - started, refusal=f"{self._name}: {error}")
        except SetupError as error:
            raise SetupError(f"{self._name}: {error}") from None
        if first is None:
            first = perf_counter() - started
        if "completion_tokens" not in answer.usage:
            raise SetupError(f"{self._name}: it reports no usage of streamed answers")
        return Answer(
            "".join(texts),
            answer.usage["completion_tokens"],
            first,
            answer.usage,
            answer.finish_reasons.get(0) == "length",
        )


@contextmanager
def asking_engine(name: str, options: EngineOptions) -> Iterator[Asker]:
    """Starts an engine, warms it up with each number of streams, and ends it afterwards."""
    with (
        running_engine(
            name, options.model, options.dtype, options.vllm, options.used_threads
        ) as url,
        closing(Asker(name, url, metrics_port=httpx.URL(url).port)) as asker,
    ):
        asker.warm_up(options.sorted_streams)
        yield asker
