"""A scheduler for gateways that are processes."""

from collections.abc import AsyncIterator

import pytest
from tokenizers import Tokenizer as Backend

from tests.gateway.fake_scheduler import FakeScheduler, start_scheduler


@pytest.fixture
async def scheduler(backend: Backend) -> AsyncIterator[FakeScheduler]:
    fake = FakeScheduler(backend.get_vocab_size())
    server, fake.port = await start_scheduler(fake)
    yield fake
    await server.stop()
