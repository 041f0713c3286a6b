"""What both clients do, and what that for asyncio does beyond, before a scripted server."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self
from unittest.mock import Mock

import grpc
import pytest

from optimist.common.v1.draft_source_pb2 import DRAFT_SOURCE_NGRAM, DRAFT_SOURCE_PREDICTION
from optimist.v1 import inference_pb2
from optimist_client import (
    AsyncClient,
    Client,
    OptimistError,
    PredictionPlace,
    PromptPlace,
    RetryPolicy,
    async_client,
)
from optimist_client.answer import Step
from optimist_client.async_stream import AsyncStream
from optimist_client.connection import OPTIONS
from optimist_client.retry import Deadline
from tests.chaos.faults.proxy import BLACK_HOLE, FaultProxy
from tests.client.scripted_server import (
    GOOD,
    ScriptedServer,
    answering,
    failing,
    hanging,
    step,
    summary,
)

STOP = inference_pb2.FINISH_REASON_STOP
by_asyncio = pytest.mark.parametrize("client", ["asyncio"], indirect=True)


class Plain:
    """The plain client or a stream of it, called as those for asyncio are."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: object) -> Any:
            found = await asyncio.to_thread(getattr, self._of, name)
            return await asyncio.to_thread(found, *arguments) if callable(found) else found

        return call

    def generate(self, prompt: str, **options: Any) -> Self:
        return type(self)(self._of.generate(prompt, **options))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        found: Step | None = await asyncio.to_thread(next, self._of, None)
        if found is None:
            raise StopAsyncIteration
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._of.__exit__(None, None, None)


@pytest.fixture(params=["plain", "asyncio"])
async def client(
    request: pytest.FixtureRequest, server: ScriptedServer, quick: RetryPolicy
) -> AsyncIterator[Any]:
    options: dict[str, Any] = {"api_key": "secret", "timeout": 20, "retries": quick}
    if request.param == "plain":
        with Client(server.address, **options) as connected:
            yield Plain(connected)
    else:
        async with AsyncClient(server.address, **options) as connected_too:
            yield connected_too


async def ended(server: ScriptedServer) -> bool:
    return await asyncio.to_thread(server.ended.wait, 10)


async def test_steps_and_the_whole_answer(server: ScriptedServer, client: Any) -> None:
    usage = inference_pb2.Usage(
        prompt_tokens=2, completion_tokens=3, tokens_by_source={"target": 3}, num_passes=2
    )
    segment = inference_pb2.Segment
    predicted = inference_pb2.PredictionPlace(index=1, start=4, end=7)
    prompted = inference_pb2.PromptPlace(message=0, start=4, end=7)
    of_template = inference_pb2.PromptPlace(start=2, end=3, is_in_tokens=True)
    segments = [
        segment(source=DRAFT_SOURCE_PREDICTION, text="Hel", num_tokens=2, prediction=predicted),
        *(segment(source=DRAFT_SOURCE_NGRAM, prompt=place) for place in (prompted, of_template)),
    ]
    drafted: Any = {"num_accepted_tokens": 2, "source": DRAFT_SOURCE_PREDICTION}
    begin = step("Hel", token_ids=[4, 5], segments=segments, **drafted)
    end = step("lo", token_ids=[6], finish_reason=STOP)
    other = step("b", index=1, finish_reason=inference_pb2.FINISH_REASON_LENGTH)
    whole = summary(request_id="r", model="tiny", usage=usage)
    server.behaviours = [answering(begin, other, end, whole)]
    stream = client.generate("Say hello", n=2)
    first, _, second = [one async for one in stream]
    assert (first.text, first.source, first.finish_reason) == ("Hel", "prediction", None)
    assert [(one.prediction, one.prompt) for one in first.segments] == [
        (PredictionPlace(1, 4, 7), None),
        (None, PromptPlace(0, 4, 7)),
        (None, PromptPlace(None, 2, 3, is_in_tokens=True)),
    ]
    assert (second.text, second.source) == ("lo", "target")
    result = await stream.result()
    answer, cut_off = result.answers
    assert (result.text, cut_off.text, cut_off.finish_reason) == ("Hello", "b", "length")
    assert (answer.token_ids, answer.finish_reason) == ((4, 5, 6), "stop")
    assert result.usage.tokens_by_source == {"target": 3}
    assert result.usage.rejected_prediction_tokens is result.speculation is None
    assert [one async for one in stream] == []
    assert server.metadata[0]["authorization"] == "Bearer secret"


async def test_a_call_that_was_not_begun_is_made_again(server: ScriptedServer, client: Any) -> None:
    server.behaviours = [
        failing(grpc.StatusCode.UNAVAILABLE),
        failing(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after="0.002"),
        GOOD,
    ]
    assert (await client.generate("x").result()).text == "a"
    assert len(server.requests) == 3


async def test_there_is_an_end_of_retries(server: ScriptedServer, client: Any) -> None:
    server.behaviours = [failing(grpc.StatusCode.UNAVAILABLE, retry_after="0.001")]
    with pytest.raises(OptimistError) as caught:
        await client.generate("x").result()
    assert caught.value.retry_after == 0.001
    assert len(server.requests) == 3
    # What was begun is not made again.
    server.behaviours = [failing(grpc.StatusCode.UNAVAILABLE, step("a")), answering(step("a"))]
    stream = client.generate("x")
    assert (await anext(stream)).text == "a"
    with pytest.raises(OptimistError, match="UNAVAILABLE"):
        await anext(stream)
    assert len(server.requests) == 4
    with pytest.raises(OptimistError, match="broke off"):
        await client.generate("x").result()


async def test_models(client: Any) -> None:
    assert [one.name for one in await client.models()] == ["tiny"]
    assert (await client.model()).max_model_len == 64
    with pytest.raises(OptimistError) as caught:
        await client.model("other")
    assert (caught.value.status, caught.value.code) == ("NOT_FOUND", "model_not_found")


async def test_a_priority_is_changed(server: ScriptedServer, client: Any) -> None:
    def begin(context: grpc.ServicerContext) -> Iterator[inference_pb2.GenerateResponse]:
        context.send_initial_metadata((("x-request-id", "gen-1"),))
        return hanging(context)

    server.behaviours = [begin]
    async with client.generate("x") as stream:
        assert await stream.request_id() == "gen-1"
        assert await client.set_priority("gen-1", -3) == 2
    with pytest.raises(OptimistError, match="NOT_FOUND") as caught:
        await client.set_priority("other", 1)
    assert caught.value.field == "request_id"
    assert server.priorities == [("gen-1", -3), ("other", 1)]
    assert server.metadata[-1]["authorization"] == "Bearer secret"


def test_another_thread_may_cancel_a_call_and_a_wait_for_a_retry(server: ScriptedServer) -> None:
    server.behaviours = [hanging, failing(grpc.StatusCode.UNAVAILABLE, retry_after="1000")]
    with Client(server.address, timeout=None) as plain:
        stream = plain.generate("x")
        next(stream)
        threading.Timer(0.05, stream.cancel).start()
        with pytest.raises(OptimistError) as caught:
            next(stream)
        assert caught.value.status == "CANCELLED"
        stream = plain.generate("x")
        threading.Timer(0.05, stream.cancel).start()
        with pytest.raises(OptimistError, match="as the test wants"):
            next(stream)
    assert len(server.requests) == 2


@by_asyncio
async def test_cancelling_the_call_is_none_of_the_task(server: ScriptedServer, client: Any) -> None:
    server.behaviours = [hanging]
    stream = client.generate("x")
    await anext(stream)
    asyncio.get_running_loop().call_later(0.05, stream.cancel)
    with pytest.raises(OptimistError, match="CANCELLED"):
        await anext(stream)
    stream = client.generate("x")
    await anext(stream)
    # A wait that is given up ends the call too.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.01)
    with pytest.raises(OptimistError, match="CANCELLED"):
        await anext(stream)


@by_asyncio
async def test_closing_the_client_ends_its_calls(server: ScriptedServer, client: Any) -> None:
    server.behaviours = [hanging]
    stream = client.generate("x")
    await anext(stream)
    tasks = [asyncio.create_task(stream.result()), asyncio.create_task(client.models())]
    await asyncio.sleep(0)
    await client.close()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, OptimistError)
        assert result.status == "CANCELLED"


@by_asyncio
async def test_cancelling_the_task_ends_the_request(server: ScriptedServer, client: Any) -> None:
    server.behaviours = [hanging]
    task = asyncio.create_task(client.generate("x").result())
    while not server.requests:  # noqa: ASYNC110 (what is waited for has no event)
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ended(server)


async def test_cancelling_the_task_ends_a_request_that_is_not_sent_yet() -> None:
    unsent = Mock(read=asyncio.Event().wait)
    stream = AsyncStream(lambda _: unsent, Deadline.after(None), RetryPolicy())
    task = asyncio.create_task(stream.result())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert unsent.cancel.called


async def test_a_wait_for_a_retry_can_be_cancelled(server: ScriptedServer) -> None:
    server.behaviours = [failing(grpc.StatusCode.UNAVAILABLE, retry_after="1000")]
    async with AsyncClient(server.address, timeout=None) as client:
        stream = client.generate("x")
        # The refusal has come by then.
        asyncio.get_running_loop().call_later(1.0, stream.cancel)
        with pytest.raises(OptimistError, match="as the test wants"):
            await anext(stream)
    assert len(server.requests) == 1


async def test_a_server_that_vanished(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Waits are as much shorter here.
    quick = [(name, value // 100 if name.endswith("_ms") else value) for name, value in OPTIONS]
    monkeypatch.setattr(async_client, "OPTIONS", quick)
    server.behaviours = [hanging]
    proxy = FaultProxy(("127.0.0.1", int(server.address.split(":")[1])))
    await proxy.start()
    try:
        async with AsyncClient(f"127.0.0.1:{proxy.port}", timeout=None) as client:
            stream = client.generate("x")
            await anext(stream)
            await proxy.disturb(BLACK_HOLE)
            # Without pings, or without a limit for their answers, it would wait for a minute.
            async with asyncio.timeout(20):
                with pytest.raises(OptimistError, match="UNAVAILABLE"):
                    await anext(stream)
    finally:
        await proxy.stop()
