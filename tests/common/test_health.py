import asyncio
import socket

import pytest

from optimist_common.network.health import is_serving, main
from optimist_common.network.server import GrpcServer

LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize("serving", [True, False])
async def test_says_what_the_server_says(serving: bool) -> None:
    server = GrpcServer(LOOPBACK, 0)
    port = await server.start()
    await server.set_serving(serving=serving)
    try:
        assert await asyncio.to_thread(is_serving, f"{LOOPBACK}:{port}", 5.0) is serving
    finally:
        await server.stop()


async def test_a_server_that_never_answers_is_not_serving() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        address = f"{LOOPBACK}:{silent.getsockname()[1]}"
        assert not await asyncio.to_thread(is_serving, address, 0.2)


def test_nobody_there_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))
        address = f"{LOOPBACK}:{unused.getsockname()[1]}"
        assert main([address]) == 1
    assert capsys.readouterr().err == f"{address} is not serving\n"


def test_a_server_that_serves_is_exit_code_0() -> None:
    async def serve_and_ask() -> int:
        server = GrpcServer(LOOPBACK, 0)
        port = await server.start()
        await server.set_serving(serving=True)
        try:
            return await asyncio.to_thread(main, [f"{LOOPBACK}:{port}"])
        finally:
            await server.stop()

    assert asyncio.run(serve_and_ask()) == 0


@pytest.mark.parametrize("arguments", [[], ["a:1", "b:2"]])
def test_a_wrong_call_is_exit_code_2(arguments: list[str]) -> None:
    assert main(arguments) == 2
