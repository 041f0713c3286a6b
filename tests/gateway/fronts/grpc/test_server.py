"""The gRPC API over a real socket, through its client and through plain gRPC."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tokenizers import Tokenizer as Backend

from optimist.scheduler.v1 import scheduler_pb2
from optimist.v1 import inference_pb2, inference_pb2_grpc
from optimist_client import AsyncClient, Client, Message, OptimistError, PromptPlace, RetryPolicy
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import served
from tests.gateway.fake_scheduler import MAX_MODEL_LEN, FakeScheduler, Say, Script, Step, tokens

ONCE = RetryPolicy(max_retries=0)
KEYS = ["anna:anna-has-a-long-key", "bert:bert-has-a-long-key"]


async def test_an_answer_step_by_step(
    inference: AsyncClient, say: Say, scheduler: FakeScheduler
) -> None:
    token_ids = say("The quick brown fox", width=3, accepted=[2, 1])
    stream = inference.generate("Hello", prediction="The quick red fox")
    steps = [step async for step in stream]
    assert "".join(step.text for step in steps) == "The quick brown fox"
    assert [token for step in steps for token in step.token_ids] == token_ids
    assert [step.num_accepted_tokens for step in steps[:2]] == [2, 1]
    assert steps[0].source == "prediction"
    assert steps[-1].finish_reason == "stop"
    result = await stream.result()
    assert result.usage.completion_tokens == len(token_ids)
    assert result.usage.accepted_prediction_tokens == 3
    assert result.usage.tokens_by_source["prediction"] == 3
    assert result.request_id == scheduler.adds[0].request_id
    assert result.model == "tiny"
    assert result.speculation is None
    assert scheduler.adds[0].max_tokens == MAX_MODEL_LEN - result.usage.prompt_tokens


async def test_prompts_of_all_kinds(
    inference: AsyncClient, say: Say, scheduler: FakeScheduler, tokenizer: Tokenizer
) -> None:
    say("ok")
    await inference.generate("Hello").result()
    await inference.generate(await tokenizer.encode("Hello", add_special_tokens=True)).result()
    await inference.generate(
        [Message("user", "Hello")], prediction=[[5, 6], [7]], max_tokens=3
    ).result()
    assert tokens(scheduler.adds[2].predicted_token_ids) == [5, 6, 7]
    assert tokens(scheduler.adds[2].num_predicted_tokens) == [2, 1]
    first, second, third = (tokens(add.prompt_token_ids) for add in scheduler.adds)
    assert first == second
    assert len(third) > len(first)
    assert scheduler.adds[2].max_tokens == 3


async def test_where_text_came_from_and_what_that_was_worth(
    inference: AsyncClient, say: Say
) -> None:
    say("The quick brown fox", width=3, accepted=[2, 1])
    result = await inference.generate(
        "Hello",
        prediction="The quick red fox",
        include_provenance=True,
        include_speculation=True,
        stop="never",
    ).result()
    answer = result.answers[0]
    assert "".join(segment.text for segment in answer.segments) == answer.text
    assert sum(segment.num_tokens for segment in answer.segments) == len(answer.token_ids)
    assert answer.segments[0].source == "prediction"
    assert answer.segments[0].num_tokens == 2
    assert result.speculation is not None
    assert result.speculation.num_accepted_tokens == 3
    assert sum(result.speculation.accepted_length_histogram) == result.speculation.num_passes


async def test_where_in_the_prompt_text_came_from(
    inference: AsyncClient, scheduler: FakeScheduler, backend: Backend
) -> None:
    ids = list(backend.encode("The fox").ids)
    positions = range(len(ids), 0, -1)
    step = Step([*ids, 1], len(ids), positions=[-1] * len(ids), prompt_positions=positions)
    scheduler.script = Script([step])
    for prompt, place in (
        ("The fox", PromptPlace(None, 0, 7)),
        (ids, PromptPlace(None, 0, len(ids), is_in_tokens=True)),
    ):
        result = await inference.generate(prompt, include_provenance=True).result()
        segment = result.answers[0].segments[0]
        assert (segment.source, segment.prompt) == ("ngram", place)


async def test_how_likely_the_tokens_were(inference: AsyncClient, say: Say) -> None:
    say("The quick brown fox", width=3)
    for prompt in ("Hello", [Message("user", "Hello")]):
        answer = (await inference.generate(prompt, num_logprobs=2).result()).answers[0]
        assert [one.token_id for one in answer.logprobs] == list(answer.token_ids)
        assert all(one.logprob <= 0 and len(one.top) == 2 for one in answer.logprobs)
        text = b"".join(one.token_bytes for one in answer.logprobs[:-1])
        assert text.decode() == answer.text


async def test_several_answers(inference: AsyncClient, say: Say) -> None:
    say("The quick")
    result = await inference.generate("Hello", n=3).result()
    assert [answer.text for answer in result.answers] == ["The quick"] * 3
    assert result.usage.prompt_tokens < result.usage.completion_tokens


async def test_stop_strings_and_limits(inference: AsyncClient, say: Say) -> None:
    say("The quick brown fox", width=3)
    answer = (await inference.generate("Hello", stop=["brown"]).result()).answers[0]
    assert (answer.text, answer.finish_reason) == ("The quick ", "stop")
    say("The quick", reason=scheduler_pb2.FINISH_REASON_LENGTH)
    assert (await inference.generate("Hello").result()).answers[0].finish_reason == "length"


async def test_cancelling_ends_the_request(
    inference: AsyncClient, say: Say, scheduler: FakeScheduler
) -> None:
    say("The quick", forever=True, pause_seconds=0.01)
    async with inference.generate("Hello") as stream:
        await anext(stream)
    await asyncio.wait_for(scheduler.aborts.get(), 10)


async def test_a_deadline_ends_the_request(
    inference: AsyncClient, say: Say, scheduler: FakeScheduler
) -> None:
    say("The quick", forever=True, pause_seconds=0.01)
    with pytest.raises(OptimistError, match="DEADLINE_EXCEEDED"):
        await inference.generate("Hello", timeout=0.3).result()
    await asyncio.wait_for(scheduler.aborts.get(), 10)


async def test_errors_name_the_field(inference: AsyncClient) -> None:
    with pytest.raises(OptimistError) as caught:
        await inference.generate("Hello", top_p=3.0).result()
    error = caught.value
    assert (error.status, error.code) == ("INVALID_ARGUMENT", "invalid_value")
    assert error.field == "sampling.top_p"
    assert error.message.startswith("sampling.top_p: ")
    for prompt, options, field, code in [
        ([], {}, "token_ids.ids", "invalid_value"),
        ([10**6], {}, "token_ids.ids", "invalid_value"),
        ("", {}, "text", "invalid_value"),
        ("x", {"prediction": [[10**6]]}, "predictions[0].token_ids.ids", "invalid_value"),
        ("x", {"max_tokens": MAX_MODEL_LEN}, "text", "context_length_exceeded"),
        ("x", {"n": 100}, "n", "invalid_value"),
        ("x", {"json_schema": "{"}, "json_schema", "invalid_json"),
    ]:
        with pytest.raises(OptimistError) as caught:
            await inference.generate(prompt, **options).result()  # type: ignore[arg-type]
        assert (caught.value.field, caught.value.code) == (field, code)


async def test_another_model(inference: AsyncClient) -> None:
    with pytest.raises(OptimistError, match="NOT_FOUND") as caught:
        await inference.generate("Hello", model="other").result()
    assert (caught.value.field, caught.value.code) == ("model", "model_not_found")
    with pytest.raises(OptimistError, match="NOT_FOUND"):
        await inference.model("other")


async def test_overload_says_when_to_come_back(inference: AsyncClient, say: Say) -> None:
    say("", reason=scheduler_pb2.FINISH_REASON_OVERLOADED)
    with pytest.raises(OptimistError, match="RESOURCE_EXHAUSTED") as caught:
        await inference.generate("Hello").result()
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 0


async def test_a_field_s_name_is_printable(inference: AsyncClient) -> None:
    schema: dict[str, Any] = {"properties": {"a\nä": {"not": {}}}}
    with pytest.raises(OptimistError, match="INVALID_ARGUMENT") as caught:
        await inference.generate("Hello", json_schema=schema).result()
    assert str(caught.value.field).endswith(".properties.a\\n\\xe4.not")


async def test_a_scheduler_that_goes_away(inference: AsyncClient, say: Say) -> None:
    say("The quick", break_stream=True)
    stream = inference.generate("Hello")
    assert (await anext(stream)).token_ids
    with pytest.raises(OptimistError, match="UNAVAILABLE") as caught:
        await stream.result()
    assert caught.value.code == "scheduler_unavailable"


async def test_what_is_too_long_is_refused(inference: AsyncClient) -> None:
    with pytest.raises(OptimistError, match="RESOURCE_EXHAUSTED"):
        await inference.generate("x" * 300_000).result()


async def test_the_synchronous_client(address: str, say: Say) -> None:
    say("The quick brown fox", width=2)

    def ask() -> list[str]:
        with Client(address, timeout=20, retries=ONCE) as client:
            assert client.model().max_model_len == MAX_MODEL_LEN
            with client.generate([Message("user", "Hello")]) as stream:
                texts = [step.text for step in stream]
            return [*texts, stream.result().text]

    *texts, whole = await asyncio.to_thread(ask)
    assert "".join(texts) == whole == "The quick brown fox"
    assert len(texts) > 1


async def test_models(inference: AsyncClient, scheduler: FakeScheduler) -> None:
    (model,) = await inference.models()
    assert (model.name, model.max_model_len) == ("tiny", MAX_MODEL_LEN)
    assert model.vocab_size == scheduler.vocab_size
    assert await inference.model("tiny") == model


async def test_health_and_reflection(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        status = health_pb2.HealthCheckResponse
        while (  # noqa: ASYNC110 (what is waited for has no event)
            await health.Check(health_pb2.HealthCheckRequest())
        ).status != status.SERVING:
            await asyncio.sleep(0.02)
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = [one async for one in reflection.ServerReflectionInfo(iter([asked]))]
        names = [service.name for service in answers[0].list_services_response.service]
        assert "optimist.v1.Inference" in names
        asked = reflection_pb2.ServerReflectionRequest(
            file_containing_symbol="optimist.v1.Inference"
        )
        answers = [one async for one in reflection.ServerReflectionInfo(iter([asked]))]
        assert answers[0].file_descriptor_response.file_descriptor_proto


async def test_the_request_id_comes_first(address: str, say: Say, scheduler: FakeScheduler) -> None:
    say("ok")
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        call = stub.Generate(inference_pb2.GenerateRequest(text="Hello"))
        metadata = dict(await call.initial_metadata())
        responses = [response async for response in call]
    assert metadata["x-request-id"] == responses[-1].summary.request_id
    assert metadata["x-request-id"] == scheduler.adds[0].request_id


async def test_keys_are_asked_for(
    grpc_settings: GatewaySettings, tokenizer: Tokenizer, say: Say, tmp_path: Path
) -> None:
    say("ok")
    address = f"127.0.0.1:{grpc_settings.grpc_port}"
    async with served(grpc_settings, tokenizer, api_keys=KEYS):
        for key, code in [(None, "missing_api_key"), ("wrong", "invalid_api_key")]:
            async with AsyncClient(address, api_key=key, retries=ONCE) as client:
                for call in (client.generate("Hello").result(), client.models()):
                    with pytest.raises(OptimistError) as caught:
                        await call
                    assert caught.value.status == "UNAUTHENTICATED"
                    assert caught.value.code == code
        async with AsyncClient(address, api_key="anna-has-a-long-key", retries=ONCE) as client:
            assert (await client.generate("Hello").result()).text == "ok"
            with pytest.raises(OptimistError, match="PERMISSION_DENIED") as refusal:
                await client.set_priority("gen-1", 1)
            assert refusal.value.code == "admin_disabled"
        async with grpc.aio.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            await health.Check(health_pb2.HealthCheckRequest())
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                [one async for one in reflection.ServerReflectionInfo(iter([asked]))]
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_limits_are_of_the_client(
    grpc_settings: GatewaySettings, tokenizer: Tokenizer, say: Say
) -> None:
    say("ok", forever=True, pause_seconds=0.01)
    address = f"127.0.0.1:{grpc_settings.grpc_port}"
    async with (
        served(grpc_settings, tokenizer, api_keys=KEYS, max_num_requests_per_key=1),
        AsyncClient(address, api_key="anna-has-a-long-key", retries=ONCE) as anna,
        AsyncClient(address, api_key="bert-has-a-long-key", retries=ONCE) as bert,
        anna.generate("Hello") as first,
        bert.generate("Hello") as second,
    ):
        await anext(first)
        with pytest.raises(OptimistError, match="RESOURCE_EXHAUSTED") as caught:
            await anna.generate("Hello").result()
        assert caught.value.code == "rate_limit_exceeded"
        assert (await anext(second)).token_ids


async def test_a_bug_is_not_shown(
    inference: AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("optimist_gateway.fronts.grpc.servicer.generation_request", fail)
    with pytest.raises(OptimistError, match="INTERNAL") as caught:
        await inference.generate("Hello").result()
    assert caught.value.code == "internal"
    assert "secret" not in caught.value.message
    assert "secret" in caplog.text


async def test_calls_are_counted(
    grpc_settings: GatewaySettings, tokenizer: Tokenizer, say: Say
) -> None:
    say("ok")
    address = f"127.0.0.1:{grpc_settings.grpc_port}"
    async with (
        served(grpc_settings, tokenizer) as http,
        AsyncClient(address, retries=ONCE) as client,
    ):
        await client.generate("Hello").result()
        with pytest.raises(OptimistError):
            await client.generate("Hello", n=99).result()
        metrics = (await http.get("/metrics")).text
    name = 'optimist_gateway_requests_total{endpoint="/optimist.v1.Inference/Generate",outcome='
    assert f'{name}"200"}} 1.0' in metrics
    assert f'{name}"400"}} 1.0' in metrics
    assert 'optimist_gateway_refusals_total{reason="invalid_value"} 1.0' in metrics
