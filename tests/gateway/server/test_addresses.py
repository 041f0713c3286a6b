"""Where schedulers are is in the log, and in no answer to a client."""

import asyncio
import logging
from typing import Any

import grpc
import pytest

from optimist.v1 import inference_pb2, inference_pb2_grpc
from optimist_gateway.schedulers.requests import UNREACHED
from tests.gateway.fake_scheduler import FakeScheduler, start_scheduler
from tests.gateway.harness import BODIES, USER, Gateway, Start, error_of, script_of
from tests.stack import free_port


def check(gateway: Gateway, text: str) -> None:
    assert text
    for address in gateway.app.state.service.default_model.schedulers.clients:
        host, _, port = address.peer.target.rpartition(":")
        for secret in (host, port, "scheduler.internal", "UNAVAILABLE", "onnect to"):
            assert secret not in text, text


async def asked_by_grpc(gateway: Gateway, name: str, message: Any) -> str:
    async with grpc.aio.insecure_channel(gateway.grpc_address) as channel:
        call = getattr(inference_pb2_grpc.InferenceStub(channel), name)(message)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            _ = [one async for one in call] if name == "Generate" else await call
    return f"{failure.value.details()} {failure.value.trailing_metadata()}"


async def test_one_that_is_not_reached_is_503_and_found_when_it_comes(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    port = free_port()
    target = f"127.0.0.1:{port}"
    async with start(schedulers=[target], grpc_port=free_port(), waits=False) as gateway:
        while target not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert caplog.text.count(f"the scheduler at {target} gets no requests") == 1
        assert (await gateway.http.get("/live")).status_code == 200
        for path in ("/health", "/ready"):
            response = await gateway.http.get(path)
            assert (response.status_code, response.json()["reason"]) == (503, UNREACHED)
            assert response.headers["retry-after"] == "1"
            check(gateway, response.text)
        for path in (*BODIES, "/tokenize"):
            response = await gateway.post(path, messages=USER, stream=True)
            assert error_of(response, 503)["code"] == "scheduler_unavailable"
            assert response.headers["retry-after"] == "1"
            check(gateway, response.text)
        assert (await gateway.http.get("/v1/models")).json()["data"][0]["id"] == "tiny"
        wanted = inference_pb2.GenerateRequest(text="a")
        check(gateway, await asked_by_grpc(gateway, "Generate", wanted))
        listing = inference_pb2.ListModelsRequest()
        check(gateway, await asked_by_grpc(gateway, "ListModels", listing))
        vocab_size = gateway.backend.get_vocab_size()
        script = script_of(gateway.backend, "The quick")
        server, _ = await start_scheduler(FakeScheduler(vocab_size, script), port)
        await gateway.until_healthy()
        assert (await gateway.chat()).choices[0].message.content == "The quick"
        await server.stop()
