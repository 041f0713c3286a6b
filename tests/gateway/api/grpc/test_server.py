"""The gRPC API over a real socket, through its client and through plain gRPC."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from optimist.scheduler.v1 import scheduler_pb2
from optimist.v1 import inference_pb2, inference_pb2_grpc
from optimist_client import AsyncClient, Message, OptimistError, PromptPlace, RetryPolicy
from tests.gateway.fake_scheduler import MAX_MODEL_LEN, Script, Step, tokens
from tests.gateway.harness import Gateway, Start
from tests.stack import free_port

ONCE = RetryPolicy(max_retries=0)
KEYS = ["anna:anna-has-a-long-key", "bert:bert-has-a-long-key"]


def a_client(gateway: Gateway, name: str = "") -> AsyncClient:
    key = f"{name}-has-a-long-key" if name else None
    return AsyncClient(gateway.grpc_address, api_key=key, timeout=20, retries=ONCE)


@pytest_asyncio.fixture(loop_scope="session")
async def inference(gateway: Gateway) -> AsyncIterator[AsyncClient]:
    async with a_client(gateway) as client:
        yield client


async def refusal(call: Any, status: str) -> OptimistError:
    with pytest.raises(OptimistError, match=status) as caught:
        await call
    return caught.value


async def test_an_answer_step_by_step(inference: AsyncClient, gateway: Gateway) -> None:
    token_ids = gateway.say("The quick brown fox", width=3, accepted=[2, 1])
    stream = inference.generate("Hello", prediction="The quick red fox")
    steps = [step async for step in stream]
    assert "".join(step.text for step in steps) == "The quick brown fox"
    assert [token for step in steps for token in step.token_ids] == token_ids
    assert [step.num_accepted_tokens for step in steps[:2]] == [2, 1]
    assert (steps[0].source, steps[-1].finish_reason) == ("prediction", "stop")
    result, (add,) = await stream.result(), gateway.adds
    usage = result.usage
    assert usage.completion_tokens == len(token_ids)
    assert usage.accepted_prediction_tokens == usage.tokens_by_source["prediction"] == 3
    assert (result.request_id, result.model) == (add.request_id, "tiny")
    assert result.speculation is None
    assert add.max_tokens == MAX_MODEL_LEN - usage.prompt_tokens


async def test_prompts_of_all_kinds(inference: AsyncClient, gateway: Gateway) -> None:
    gateway.say("ok")
    await inference.generate("Hello").result()
    await inference.generate(gateway.backend.encode("Hello").ids).result()
    options: Any = {"prediction": [[5, 6], [7]], "max_tokens": 3}
    await inference.generate([Message("user", "Hello")], **options).result()
    last = gateway.adds[2]
    assert tokens(last.predicted_token_ids) == [5, 6, 7]
    assert (tokens(last.num_predicted_tokens), last.max_tokens) == ([2, 1], 3)
    first, second, third = (tokens(add.prompt_token_ids) for add in gateway.adds)
    assert first == second
    assert len(third) > len(first)


async def test_where_in_the_prompt_text_came_from(inference: AsyncClient, gateway: Gateway) -> None:
    ids = list(gateway.backend.encode("The fox").ids)
    size, positions = len(ids), range(len(ids), 0, -1)
    step = Step([*ids, 1], size, positions=[-1] * size, prompt_positions=positions)
    gateway.scheduler.script = Script([step])
    in_tokens = PromptPlace(None, 0, size, is_in_tokens=True)
    for prompt, place in (("The fox", PromptPlace(None, 0, 7)), (ids, in_tokens)):
        result = await inference.generate(prompt, include_provenance=True).result()
        segment = result.answers[0].segments[0]
        assert (segment.source, segment.prompt) == ("ngram", place)


async def test_several_answers_stops_and_limits(inference: AsyncClient, gateway: Gateway) -> None:
    gateway.say("The quick brown fox", width=3)
    result = await inference.generate("Hello", n=3, stop=["brown"]).result()
    ends = [(answer.text, answer.finish_reason) for answer in result.answers]
    assert ends == [("The quick ", "stop")] * 3
    assert result.usage.prompt_tokens < result.usage.completion_tokens
    gateway.say("The quick", reason=scheduler_pb2.FINISH_REASON_LENGTH)
    assert (await inference.generate("Hello").result()).answers[0].finish_reason == "length"


async def test_cancelling_or_a_deadline_ends_it(inference: AsyncClient, gateway: Gateway) -> None:
    gateway.say("The quick", forever=True, pause_seconds=0.01)
    async with inference.generate("Hello") as stream:
        await anext(stream)
    await asyncio.wait_for(gateway.scheduler.aborts.get(), 10)
    await refusal(inference.generate("Hello", timeout=0.3).result(), "DEADLINE_EXCEEDED")
    await asyncio.wait_for(gateway.scheduler.aborts.get(), 10)


async def test_errors_name_the_field(inference: AsyncClient) -> None:
    schema: dict[str, Any] = {"properties": {"a": {"not": {"type": "null"}}}}
    for prompt, options, field, code in [
        ([10**6], {}, "token_ids.ids", "invalid_value"),
        ("x", {"prediction": [[10**6]]}, "predictions[0].token_ids.ids", "invalid_value"),
        ([5] * MAX_MODEL_LEN, {}, "token_ids.ids", "context_length_exceeded"),
        ("x", {"n": 100}, "n", "invalid_value"),
        ("x", {"json_schema": schema}, "json_schema", "invalid_value"),
    ]:
        call: Any = inference.generate(prompt, **options).result()  # type: ignore[arg-type]
        error = await refusal(call, "INVALID_ARGUMENT")
        assert (error.field, error.code) == (field, code)


async def test_other_failures(inference: AsyncClient, gateway: Gateway) -> None:
    other = await refusal(inference.generate("Hello", model="other").result(), "NOT_FOUND")
    assert (other.field, other.code) == ("model", "model_not_found")
    await refusal(inference.model("other"), "NOT_FOUND")
    await refusal(inference.generate("x" * 300_000).result(), "RESOURCE_EXHAUSTED")
    gateway.say("", reason=scheduler_pb2.FINISH_REASON_OVERLOADED)
    overload = await refusal(inference.generate("Hello").result(), "RESOURCE_EXHAUSTED")
    assert (overload.retry_after or 0) > 0
    gateway.say("", reason=scheduler_pb2.FINISH_REASON_OVERLOADED, retry_ms=7_500)
    overload = await refusal(inference.generate("Hello").result(), "RESOURCE_EXHAUSTED")
    assert overload.retry_after == 7.5
    gateway.say("The quick", break_stream=True)
    stream = inference.generate("Hello")
    assert (await anext(stream)).token_ids
    assert (await refusal(stream.result(), "UNAVAILABLE")).code == "scheduler_unavailable"


def reflected(channel: grpc.aio.Channel, **fields: str) -> Any:
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(**fields)
    return reflection.ServerReflectionInfo(iter([asked]))


async def test_health_reflection_and_the_request_id_that_comes_first(gateway: Gateway) -> None:
    gateway.say("ok")
    async with grpc.aio.insecure_channel(gateway.grpc_address) as channel:
        health, asked = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
        serving = health_pb2.HealthCheckResponse.SERVING
        while (await health.Check(asked)).status != serving:  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0.02)
        (answer,) = [one async for one in reflected(channel, list_services="")]
        names = [service.name for service in answer.list_services_response.service]
        assert "optimist.v1.Inference" in names
        found = reflected(channel, file_containing_symbol="optimist.v1.Inference")
        (answer,) = [one async for one in found]
        assert answer.file_descriptor_response.file_descriptor_proto
        stub = inference_pb2_grpc.InferenceStub(channel)
        call = stub.Generate(inference_pb2.GenerateRequest(text="Hello"))
        metadata = dict(await call.initial_metadata())
        responses = [response async for response in call]
    request_id = gateway.adds[0].request_id
    assert metadata["x-request-id"] == responses[-1].summary.request_id == request_id


async def test_keys_are_asked_for(start: Start) -> None:
    async with start(grpc_port=free_port(), api_keys=KEYS) as gateway:
        gateway.say("ok")
        for name, code in [("", "missing_api_key"), ("wrong", "invalid_api_key")]:
            async with a_client(gateway, name) as client:
                for call in (client.generate("Hello").result(), client.models()):
                    assert (await refusal(call, "UNAUTHENTICATED")).code == code
        async with a_client(gateway, "anna") as client:
            assert (await client.generate("Hello").result()).text == "ok"
            denied = await refusal(client.set_priority("gen-1", 1), "PERMISSION_DENIED")
            assert denied.code == "admin_disabled"
        async with grpc.aio.insecure_channel(gateway.grpc_address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            await health.Check(health_pb2.HealthCheckRequest())
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                [one async for one in reflected(channel, list_services="")]
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_limits_are_of_the_client(start: Start) -> None:
    async with start(grpc_port=free_port(), api_keys=KEYS, max_num_requests_per_key=1) as gateway:
        gateway.say("ok", forever=True, pause_seconds=0.01)
        async with (
            a_client(gateway, "anna") as anna,
            a_client(gateway, "bert") as bert,
            anna.generate("Hello") as first,
            bert.generate("Hello") as second,
        ):
            await anext(first)
            error = await refusal(anna.generate("Hello").result(), "RESOURCE_EXHAUSTED")
            assert error.code == "rate_limit_exceeded"
            assert (await anext(second)).token_ids


async def test_a_bug_is_not_shown(
    inference: AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("optimist_gateway.api.grpc.servicer.generation_request", fail)
    error = await refusal(inference.generate("Hello").result(), "INTERNAL")
    assert error.code == "internal"
    assert "secret" not in error.message
    assert "secret" in caplog.text
