"""A scripted server for the tests of the client."""

from collections.abc import Iterator

import pytest

from optimist_client import RetryPolicy
from tests.client.scripted_server import ScriptedServer, serving


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serving() as scripted:
        yield scripted


@pytest.fixture
def quick() -> RetryPolicy:
    """Makes calls again without waiting."""
    return RetryPolicy(max_retries=2, first_wait_seconds=0.001)
