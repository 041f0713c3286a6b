"""A small tokenizer, a fake scheduler, and the gateway on a real socket."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uvicorn
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pytest_asyncio import is_async_test
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from optimist_gateway.server.app import create_app
from optimist_gateway.server.http_server import server_config
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer, load_tokenizer
from tests.gateway.fake_scheduler import EOS, FakeScheduler, Script, Step, start_scheduler
from tests.gateway.harness import Gateway, Start, starting
from tests.stack import free_port

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' and loop.first %}"
    "{{ raise_exception('begin with a user') }}{% endif %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CORPUS = [
    "def main(argument):\n    return argument + 1\n",
    "The quick brown fox jumps over the lazy dog. " * 3,
    "for index in range(10):\n    print(index, total)\n",
    "ÄÖÜ äöü ß 東京 日本語 \N{GRINNING FACE}\N{ROCKET}",
]


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE with a chat template, as a model directory."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=512,
            special_tokens=["<|pad|>", "<|end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, eos_token="<|end|>", pad_token="<|pad|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    directory = tmp_path_factory.mktemp("model") / "tiny"
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def backend(model_directory: Path) -> Backend:
    return Backend.from_file(str(model_directory / "tokenizer.json"))


@pytest.fixture(scope="session")
def tokenizer(model_directory: Path) -> Tokenizer:
    return load_tokenizer(str(model_directory))


@pytest.fixture
async def scheduler(backend: Backend) -> AsyncIterator[FakeScheduler]:
    fake = FakeScheduler(vocab_size=backend.get_vocab_size())
    server, fake.port = await start_scheduler(fake)
    yield fake
    await server.stop()


@pytest.fixture
def say(scheduler: FakeScheduler, backend: Backend) -> Callable[..., list[int]]:
    """Lets the scheduler answer every request with a text and the end-of-answer token."""

    def set_script(
        text: str, width: int = 1, accepted: Sequence[int] = (), **options: object
    ) -> list[int]:
        scheduler.script = script_of(backend, text, width, accepted, **options)
        return [token for step in scheduler.script.steps for token in step.token_ids]

    return set_script


def script_of(
    backend: Backend, text: str, width: int = 1, accepted: Sequence[int] = (), **options: object
) -> Script:
    """Writes a text and the end-of-answer token in steps of a width."""
    token_ids = [*backend.encode(text).ids, EOS]
    starts = range(0, len(token_ids), width)
    counts = [*accepted, *[0] * len(starts)]
    return Script(
        steps=[
            Step(token_ids[start : start + width], count)
            for start, count in zip(starts, counts, strict=False)
        ],
        accepted=sum(counts),
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture
def settings(scheduler: FakeScheduler, model_directory: Path) -> GatewaySettings:
    return GatewaySettings(
        model=str(model_directory),
        schedulers=[f"127.0.0.1:{scheduler.port}"],
        max_body_bytes=200_000,
        max_num_requests=4,
        resume_seconds=0,
        max_prediction_bytes=60_000,
    )


class QuickServer(uvicorn.Server):
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
async def serving(settings: GatewaySettings, tokenizer: Tokenizer) -> AsyncIterator[str]:
    """Serves a gateway on a free port; yields its address."""
    # Only if asyncio knows the protocol does the end of an answer not wait for an acknowledgement.
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        server = QuickServer(server_config(create_app(settings, tokenizer), settings))
        # Signals stay with pytest.
        task = asyncio.create_task(server._serve([listener]))
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.ending.set()
        await task


@asynccontextmanager
async def served(
    settings: GatewaySettings, tokenizer: Tokenizer, **changes: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Serves a gateway of changed settings; yields a client once it has found its scheduler."""
    async with (
        serving(settings.model_copy(update=changes), tokenizer) as address,
        httpx.AsyncClient(base_url=address, trust_env=False, verify=False, timeout=20) as client,
    ):
        await until_healthy(client)
        yield client


@asynccontextmanager
async def asking(
    settings: GatewaySettings, tokenizer: Tokenizer, **changes: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """The same without a socket."""
    app = create_app(settings.model_copy(update=changes), tokenizer)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
    ):
        await until_healthy(client)
        yield client


@pytest.fixture
async def url(settings: GatewaySettings, tokenizer: Tokenizer) -> AsyncIterator[str]:
    """The gateway in front of the fake scheduler."""
    async with serving(settings, tokenizer) as address:
        async with httpx.AsyncClient(base_url=address, trust_env=False, verify=False) as client:
            await until_healthy(client)
        yield address


@pytest.fixture
async def http_without_scheduler(
    model_directory: Path, tokenizer: Tokenizer
) -> AsyncIterator[tuple[httpx.AsyncClient, int]]:
    """A gateway whose scheduler is not there, and the port where it is looked for."""
    port = free_port()
    settings = GatewaySettings(model=str(model_directory), schedulers=[f"127.0.0.1:{port}"])
    async with (
        serving(settings, tokenizer) as address,
        httpx.AsyncClient(base_url=address, trust_env=False, verify=False, timeout=20) as client,
    ):
        yield client, port


async def until(is_so: Callable[[], bool]) -> None:
    """Waits for something that another task brings about."""
    while not is_so():  # noqa: ASYNC110 (what is waited for has no event)
        await asyncio.sleep(0.005)


async def until_healthy(client: httpx.AsyncClient) -> None:
    """Waits until the gateway has found its scheduler."""
    while (await client.get("/health")).status_code != 200:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=20) as client:
        yield client


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        http_client=DefaultAsyncHttpxClient(verify=False),
    ) as connected:
        yield connected


@pytest.fixture(scope="session")
def start(model_directory: Path, tokenizer: Tokenizer, backend: Backend) -> Start:
    """Starts gateways of other settings, each with schedulers of its own; see `starting`."""
    return partial(starting, model_directory, tokenizer, backend)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_gateway(start: Start) -> AsyncIterator[Gateway]:
    async with start(grpc_port=free_port()) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(shared_gateway: Gateway) -> AsyncIterator[Gateway]:
    """A gateway of the usual settings, which tests share; nothing runs in it before and after."""
    yield shared_gateway
    await shared_gateway.reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets what uses the shared gateway run in its event loop."""
    for item in items:
        if "gateway" in getattr(item, "fixturenames", ()) and is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
