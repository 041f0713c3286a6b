"""The plugin's scheduler in a loop with a model whose output is known."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import cache
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.request import StructuredOutputRequest

from optimist_aligner import Aligner, Vocabulary
from optimist_vllm import scheduler as module
from optimist_vllm.core.payload import PAYLOAD

END = 0


def tokens(text: str) -> list[int]:
    return [ord(each) for each in text]


class Inline(Executor):
    """Runs what it is given at once, so that tests do not depend on threads."""

    def __init__(self, *_args: object) -> None: ...

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@cache
def algorithm() -> Aligner:
    """Returns the one that all engines share, since it takes a while to set up."""
    vocabulary = Vocabulary([chr(token_id) for token_id in range(128)], tokens)
    return Aligner(vocabulary, is_chain=True)


class Engine:
    """Runs passes; the time of one grows a little with its tokens."""

    def __init__(
        self,
        monkeypatch: Any,
        num_drafts: int = 64,
        max_model_len: int = 10_000,
        scheduler_class: type[module.PredictionScheduler] = module.PredictionScheduler,
    ) -> None:
        monkeypatch.setattr(module, "ThreadPoolExecutor", Inline)
        monkeypatch.setattr(module, "Aligner", lambda *_, is_chain: algorithm())
        self.now = 0
        monkeypatch.setattr(module, "perf_counter_ns", lambda: self.now)
        self.grammar = StructuredOutputManager()
        config = SimpleNamespace(
            num_speculative_tokens=num_drafts,
            max_model_len=max_model_len,
            model_config=SimpleNamespace(get_vocab_size=lambda: 128),
        )
        self.scheduler = scheduler_class(config, None, self.grammar)
        self.truths: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.reports: dict[str, list[Any]] = {}
        self.drafts: list[dict[str, list[int]]] = []

    def add(
        self,
        request_id: str,
        truth: str,
        prompt: Sequence[int] | None = None,
        max_tokens: int = 1000,
        extra_args: Mapping[str, Any] | None = None,
        structured: StructuredOutputRequest | None = None,
    ) -> Request:
        params = SamplingParams(max_tokens, 1, dict(extra_args or {}))
        if extra_args and PAYLOAD in extra_args:
            # As it arrives in another process.
            params.extra_args = {**extra_args, PAYLOAD: dataclasses.asdict(extra_args[PAYLOAD])}
        request = Request(request_id, list(prompt) if prompt else tokens("ask"), params)
        request.structured_output_request = structured
        self.truths[request_id] = [*tokens(truth), END]
        self.outputs[request_id] = []
        self.reports[request_id] = []
        self.scheduler.add_request(request)
        return request

    def step(self, pass_ns: int = 1_000_000) -> list[Any]:
        """Runs a pass and returns its outputs."""
        output = self.scheduler.schedule()
        drafts = output.scheduled_spec_decode_tokens
        self.drafts.append({key: list(each) for key, each in drafts.items()})
        self.now += pass_ns + 1000 * output.total_num_scheduled_tokens
        emitted = {}
        for request_id in output.num_scheduled_tokens:
            rest = self.truths[request_id][len(self.outputs[request_id]) :]
            pairs = zip(self.drafts[-1].get(request_id, ()), rest, strict=False)
            right = list(takewhile(lambda pair: pair[0] == pair[1], pairs))
            emitted[request_id] = rest[: len(right) + 1]
        outputs: list[Any] = self.scheduler.update_from_output(output, emitted)[0].outputs
        for each in outputs:
            self.outputs[each.request_id] += each.new_token_ids
            report = (each.kv_transfer_params or {}).get(PAYLOAD)
            if report is not None:
                self.reports[each.request_id].append(report)
        return outputs

    def run(self, on_step: Callable[[], None] = lambda: None) -> int:
        """Runs until nothing is left; returns how many passes that took."""
        num_passes = 0
        while self.scheduler.requests:
            on_step()
            self.step()
            num_passes += 1
        return num_passes

    def text(self, request_id: str) -> str:
        return "".join(map(chr, self.outputs[request_id])).rstrip("\0")
