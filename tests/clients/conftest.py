"""One running stack for all clients."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.stack import Stack


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    running = Stack()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as connected:
        yield connected
