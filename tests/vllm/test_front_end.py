"""vLLM's endpoints take predictions, and their answers say what these were worth."""

import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from prometheus_client import REGISTRY
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.output_processor import OutputProcessor

import optimist_vllm
from optimist_vllm.core.payload import PAYLOAD
from tests.vllm.engine import Engine

CODE = "def area(width, height):\n    return width * height\n" * 2
PREDICTION = {"type": "content", "content": CODE}


@pytest.fixture(autouse=True, scope="module")
def plugin() -> None:
    optimist_vllm.register()
    config = {"model": "optimist_vllm.Proposer", "num_speculative_tokens": 64}
    EngineArgs(config).create_engine_config()


class Served:
    """The endpoints in front of an engine whose model answers every request with `CODE`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = Engine(monkeypatch)
        self.processor = OutputProcessor()
        self.chat = OpenAIServingChat(self._generate)
        self.completion = OpenAIServingCompletion(self._generate)
        self.responses = OpenAIServingResponses(self._generate)

    def _generate(self, prompt: str, params: Any) -> list[str]:
        extra_args, self.processor.seen = params.extra_args, []
        ids = [f"{index}_{prompt}" for index in range(params.n)]
        for request_id in ids:
            self.engine.add(request_id, CODE, max_tokens=params.max_tokens, extra_args=extra_args)
        while self.engine.scheduler.requests:
            for request_id in self.processor.process_outputs(self.engine.step()):
                self.engine.scheduler.requests.pop(request_id, None)
        texts: dict[str, list[int]] = {request_id: [] for request_id in ids}
        for output in self.processor.seen:
            texts[output.request_id] += output.new_token_ids
        return ["".join(map(chr, each)).rstrip("\0") for each in texts.values()]

    async def ask(self, **body: Any) -> Any:
        return await self.chat.create_chat_completion(ChatCompletionRequest(prompt="?", **body))

    async def complete(self, **body: Any) -> Any:
        return await self.completion.create_completion(CompletionRequest(prompt="?", **body))

    async def respond(self, **body: Any) -> Any:
        return await self.responses.create_responses(ResponsesRequest(prompt="?", **body))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    return Served(monkeypatch)


def counts(answer: Any) -> tuple[int, int]:
    details = answer.usage.completion_tokens_details.model_dump()
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


async def test_both_endpoints_take_a_prediction(served: Served) -> None:
    several = [PREDICTION, {"type": "content", "content": "something else"}]
    for endpoint, field in ((served.ask, PREDICTION), (served.complete, several)):
        answer = await endpoint(prediction=field)
        assert answer.texts == [CODE]
        accepted, rejected = counts(answer)
        assert accepted > len(CODE) * 0.8
        assert rejected <= len("something else")


async def test_a_request_without_one_is_as_before(served: Served) -> None:
    for body in ({}, {"prediction": None}, {"vllm_xargs": {"other": 1}}):
        answer = await served.ask(**body)
        assert answer.usage.completion_tokens_details is None
        assert all(each.kv_transfer_params is None for each in served.processor.seen)


async def test_tokens_behind_a_stop_string_are_not_accepted(served: Served) -> None:
    served.processor.stop = ord("*")
    answer = await served.ask(prediction=PREDICTION)
    assert answer.texts == [CODE.split("*")[0]]
    assert counts(answer)[0] <= len(answer.texts[0])


async def events(chunks: AsyncIterator[str]) -> list[Any]:
    lines = [chunk.removeprefix("data: ") async for chunk in chunks]
    assert lines[-1] == "[DONE]\n\n"
    return [json.loads(line) for line in lines[:-1]]


async def test_the_last_chunk_of_a_stream_has_the_counts(served: Served) -> None:
    *chunks, last = await events(await served.ask(prediction=PREDICTION, stream=True))
    assert [each["choices"][0]["text"] for each in chunks] == [CODE]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(CODE)
    assert last["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 80
    assert last["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] == 0
    # A text that looks like the last chunk is left alone.
    tricky = '"choices":[] "usage":{'
    served.chat.engine = lambda *_: [tricky]
    first, _ = await events(await served.ask(prediction=PREDICTION, stream=True))
    assert first == {"choices": [{"index": 0, "text": tricky}]}


async def test_what_is_no_prediction_is_an_error_that_names_the_field(served: Served) -> None:
    no_prediction = {"type": "secret", "content": "secret"}
    for field in (1, "x" * 5_000_000, no_prediction, "secret \ud800"):
        error = await served.ask(prediction=field)
        assert error.param == "prediction"
        assert error.message.startswith("prediction: ")
        assert "secret" not in error.message
    field = {"type": "content", "content": "a " * 150_000}
    error = await served.ask(prediction=field)
    assert error.message == "prediction: at most 262144 tokens, not 300000"


async def test_predictions_are_in_no_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for body in ({"prediction": PREDICTION}, {"vllm_xargs": {"prediction": CODE}}):
        await served.ask(**body)
        await served.respond(**body)
    # vLLM logs the parameters of requests with --enable-log-requests.
    assert caplog.text.count(f"<prediction of {len(CODE)} tokens>") == 4
    assert "width" not in caplog.text


def metric(result: str) -> float:
    labels = {"result": result}
    return REGISTRY.get_sample_value("optimist_plugin_prediction_tokens_total", labels) or 0.0


async def test_responses_take_a_prediction_and_count_it_in_the_metrics_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = metric("accepted")
    answer = await Served(monkeypatch).respond(prediction=PREDICTION)
    assert answer.texts == [CODE]
    assert vars(answer.usage) == {"output_tokens": len(CODE)}
    one = metric("accepted") - before
    assert one > len(CODE) * 0.8
    chunks = await Served(monkeypatch).respond(vllm_xargs={"prediction": CODE}, stream=True)
    assert ["width" in chunk.text async for chunk in chunks] == [True, False, False]
    assert metric("accepted") - before == 2 * one
    assert (await Served(monkeypatch).respond(prediction=7)).param == "prediction"


def test_params_of_a_connector_are_left_alone() -> None:
    class Params(OutputProcessor):
        def process_outputs(self, outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            return [output.kv_transfer_params for output in outputs]

    from optimist_vllm.accounts import _wrap

    process = _wrap(Params.process_outputs)
    output = EngineCoreOutput("1", [1], None, {"remote": 1, PAYLOAD: [None, 0, 0, [], 0, 0]})
    assert process(Params(), [output]) == [{"remote": 1}]
