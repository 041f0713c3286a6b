"""Where schedulers are is in the log, and in no answer to a client."""

import asyncio
import logging
from typing import Any

import grpc
import pytest

from optimist.v1 import inference_pb2, inference_pb2_grpc
from tests.gateway.fake_scheduler import Script
from tests.gateway.harness import BODIES, CHAT, Gateway, Start, script_of
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


async def test_no_answer_names_a_scheduler_that_is_not_reached(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    target = f"127.0.0.1:{free_port()}"
    async with start(schedulers=[target], grpc_port=free_port(), waits=False) as gateway:
        while target not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert caplog.text.count(f"the scheduler at {target} gets no requests") == 1
        for path in ("/health", "/ready"):
            response = await gateway.http.get(path)
            assert response.status_code == 503
            check(gateway, response.text)
        for stream in (False, True):
            for path in BODIES:
                response = await gateway.post(path, stream=stream)
                assert response.status_code == 503
                assert response.json()["error"]["code"] == "scheduler_unavailable"
                check(gateway, response.text)
        response = await gateway.http.post("/tokenize", json={"prompt": "a"})
        check(gateway, response.text)
        check(gateway, (await gateway.http.get("/v1/models")).text)
        wanted = inference_pb2.GenerateRequest(text="a")
        check(gateway, await asked_by_grpc(gateway, "Generate", wanted))
        check(
            gateway, await asked_by_grpc(gateway, "ListModels", inference_pb2.ListModelsRequest())
        )


@pytest.mark.parametrize("stream", [False, True])
async def test_nor_one_that_was_lost(start: Start, stream: bool) -> None:
    async with start() as gateway:
        steps = script_of(gateway.backend, "The quick brown").steps
        gateway.scheduler.script = Script(steps, break_stream=True)
        response = await gateway.post(CHAT, stream=stream)
        assert response.status_code == (200 if stream else 503)
        assert "went away" in response.text
        check(gateway, response.text)
