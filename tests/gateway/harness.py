"""The gateway on a real socket before fake schedulers, and its clients."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from tokenizers import Tokenizer as Backend

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.network.server import GrpcServer
from optimist_gateway.server.app import create_app
from optimist_gateway.server.http_server import server_config
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.fake_scheduler import EOS, FakeScheduler, Script, Step, start_scheduler

Fields = dict[str, Any]
USER: Any = [{"role": "user", "content": "Hello"}]
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES: dict[str, Fields] = {
    CHAT: {"model": "tiny", "messages": USER},
    COMPLETIONS: {"model": "tiny", "prompt": "Hello"},
    RESPONSES: {"model": "tiny", "input": "Hello"},
}
"""What a request needs at least."""
Start = Callable[..., AbstractAsyncContextManager["Gateway"]]
"""See `starting`, without its first three arguments."""


class Gateway:
    """A running gateway, its schedulers, and its clients."""

    def __init__(
        self, app: FastAPI, http: httpx.AsyncClient, client: AsyncOpenAI, backend: Backend
    ) -> None:
        self.app, self.http, self.client, self.backend = app, http, client, backend
        self.url = str(http.base_url).rstrip("/")
        self.grpc_address = ""
        """Of its gRPC API, if the settings have a port for it."""
        self.schedulers: list[FakeScheduler] = []
        self.servers: list[GrpcServer] = []
        """Of the schedulers."""

    @property
    def scheduler(self) -> FakeScheduler:
        """The first one."""
        return self.schedulers[0]

    @property
    def adds(self) -> list[scheduler_pb2.Add]:
        """The requests that the first scheduler got."""
        return self.scheduler.adds

    def say(
        self, text: str, width: int = 1, accepted: Sequence[int] = (), **options: Any
    ) -> list[int]:
        """Lets the scheduler answer every request with a text; see `script_of`."""
        self.scheduler.script = script_of(self.backend, text, width, accepted, **options)
        return [token for step in self.scheduler.script.steps for token in step.token_ids]

    async def chat(self, extra: Fields | None = None, **options: Any) -> Any:
        """Asks by the official client, as `complete` and `respond` do."""
        asked = BODIES[CHAT] | options
        return await self.client.chat.completions.create(**asked, extra_body=extra)

    async def complete(self, extra: Fields | None = None, **options: Any) -> Any:
        asked = BODIES[COMPLETIONS] | options
        return await self.client.completions.create(**asked, extra_body=extra)

    async def respond(self, extra: Fields | None = None, **options: Any) -> Any:
        return await self.client.responses.create(**BODIES[RESPONSES] | options, extra_body=extra)

    async def post(self, path: str, *, key: str = "", **fields: Any) -> httpx.Response:
        """Posts fields beside those that a request needs."""
        return await self.post_json(path, BODIES.get(path, {}) | fields, key=key)

    async def post_json(self, path: str, body: Any, *, key: str = "") -> httpx.Response:
        """Posts JSON in ASCII, so that halves of surrogate pairs can be sent."""
        headers = {"content-type": "application/json", **(bearer(key) if key else {})}
        return await self.http.post(path, content=json.dumps(body), headers=headers)

    async def answer(self, path: str, **fields: Any) -> Any:
        """Returns the answer to a request that succeeds."""
        response = await self.post(path, **fields)
        assert response.status_code == 200, response.text
        return response.json()

    async def chunks(self, path: str, **fields: Any) -> list[Any]:
        """Returns the chunks of a streamed answer that succeeds."""
        response = await self.post(path, stream=True, **fields)
        assert response.status_code == 200, response.text
        events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]

    async def refused(self, path: str, status: int = 400, **fields: Any) -> Any:
        """Returns the error of a request that fails; see `error_of`."""
        return error_of(await self.post(path, **fields), status)

    async def connect(self, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url = self.http.base_url
        return await asyncio.open_connection(url.host, url.port, **options)

    async def figures(self) -> dict[str, float]:
        """Returns the gateway's metrics by name and labels as they are printed."""
        lines = (await self.metrics()).splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name.removeprefix("optimist_gateway_"): float(value) for name, value in pairs}

    async def metrics(self) -> str:
        return (await self.http.get("/metrics")).text

    async def until_shown(self, text: str) -> None:
        """Waits until it is part of the metrics."""
        while text not in await self.metrics():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def until_nothing_runs(self) -> None:
        admission = self.app.state.service.admission
        await until(lambda: not admission.num_requests)

    async def until_healthy(self) -> None:
        """Waits until it has found its scheduler."""
        while (await self.http.get("/health")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def reset(self) -> None:
        """Waits for the end of what a test has begun; forgets what the scheduler was sent."""
        await self.until_nothing_runs()
        await self.scheduler.reset()
        await self.until_healthy()


def script_of(
    backend: Backend, text: str, width: int = 1, accepted: Sequence[int] = (), **options: Any
) -> Script:
    """Writes a text and the end-of-answer token in steps of a width."""
    token_ids = [*backend.encode(text).ids, EOS]
    parts = [token_ids[start : start + width] for start in range(0, len(token_ids), width)]
    counts = [*accepted, *[0] * len(parts)]
    return Script([Step(*step) for step in zip(parts, counts, strict=False)], **options)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def error_of(response: httpx.Response, status: int) -> Any:
    """Returns the error of a response, whose shape is checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert len(error["message"]) <= 400
    assert len(response.content) < 1000
    return error


async def until(is_so: Callable[[], bool]) -> None:
    """Waits for something that another task brings about."""
    while not is_so():  # noqa: ASYNC110 (what is waited for has no event)
        await asyncio.sleep(0.005)


@asynccontextmanager
async def starting(
    model_directory: Path,
    tokenizer: Tokenizer,
    backend: Backend,
    *schedulers: FakeScheduler,
    others: Sequence[Tokenizer] = (),
    waits: bool = True,
    **settings: Any,
) -> AsyncIterator[Gateway]:
    """Serves a gateway on a free port.

    Args:
        model_directory: Of the model.
        tokenizer: Of the model.
        backend: Of the tokenizer.
        schedulers: Those that it connects to; one if none is given, and no addresses in `settings`.
        others: Tokenizers of further models, `models` of the settings.
        waits: Whether to wait until it has found them.
        settings: Of the gateway, where they are not the usual ones.
    """
    started = schedulers or (() if "schedulers" in settings else (FakeScheduler(),))
    async with AsyncExitStack() as stack:
        servers = []
        for one in started:
            one.vocab_size = backend.get_vocab_size()
            server, one.port = await start_scheduler(one)
            stack.push_async_callback(server.stop)
            servers.append(server)
        values = {
            "model": str(model_directory),
            "schedulers": [f"127.0.0.1:{one.port}" for one in started],
            "max_body_bytes": 200_000,
            "max_num_requests": 4,
            "resume_seconds": 0,
            "max_prediction_bytes": 60_000,
        }
        app = create_app(made := GatewaySettings(**values | settings), [tokenizer, *others])
        url = await stack.enter_async_context(_serving(app, made))
        http = await stack.enter_async_context(a_client(url))
        transport: Any = {"http_client": DefaultAsyncHttpxClient(verify=False), "max_retries": 0}
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", **transport)
        gateway = Gateway(app, http, await stack.enter_async_context(client), backend)
        gateway.grpc_address = f"127.0.0.1:{made.grpc_port}"
        gateway.schedulers, gateway.servers = list(started), servers
        if waits:
            await gateway.until_healthy()
        yield gateway


def a_client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=20)


class _QuickServer(uvicorn.Server):
    """Ends when it is asked to; uvicorn looks ten times a second whether it should, and waits."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ending = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await until(lambda: not self.server_state.tasks)
        await self.lifespan.shutdown()


@asynccontextmanager
async def _serving(app: FastAPI, settings: GatewaySettings) -> AsyncIterator[str]:
    # Only if asyncio knows the protocol does the end of an answer not wait for an acknowledgement.
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        server = _QuickServer(server_config(app, settings))
        # Signals stay with pytest.
        task = asyncio.create_task(server._serve([listener]))
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.ending.set()
        await task
