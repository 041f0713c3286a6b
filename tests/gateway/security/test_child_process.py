"""Processes that fail, hang or eat memory over a request end by themselves."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from optimist_gateway.security.beside import ChildError, ChildProcess, ChildUnavailableError


def load(argument: str) -> Callable[[Any], str]:
    """What the process loads: renders by the name of a deed."""

    def render(value: Any) -> str:
        match value["do"]:
            case "hang":
                while True:
                    pass
            case "memory":
                return "x" * 2**40
            case "wait":
                time.sleep(0.2)
            case "pid":
                return str(os.getpid())
            case "exit":
                os._exit(3)
            case "print":
                print("a library that prints")  # noqa: T201
        return f"{argument}:{value['text']}"

    return render


@pytest.fixture
async def process() -> AsyncIterator[ChildProcess]:
    started = ChildProcess(f"{__name__}:load", "model", 2.0, "the deed")
    yield started
    await started.stop()


def say(text: str, do: str = "") -> dict[str, str]:
    return {"do": do, "text": text}


async def test_too_much_memory_is_refused_and_the_process_goes_on(process: ChildProcess) -> None:
    pid = await process.ask(say("", "pid"))
    with pytest.raises(ChildError, match="memory"):
        await process.ask(say("a", "memory"))
    assert await process.ask(say("", "pid")) == pid


async def test_a_process_that_dies_is_started_again(process: ChildProcess) -> None:
    with pytest.raises(ChildUnavailableError, match="died"):
        await process.ask(say("a", "exit"))
    assert await process.ask(say("b")) == "model:b"


async def test_who_does_not_wait_leaves_nothing_to_the_next(process: ChildProcess) -> None:
    await process.ask(say(""))
    leaving = asyncio.create_task(process.ask(say("a", "hang")))
    await asyncio.sleep(0.05)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert await process.ask(say("b")) == "model:b"
