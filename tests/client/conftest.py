"""A scripted server for the tests of the client."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from optimist.v1 import inference_pb2_grpc
from optimist_client import RetryPolicy
from tests.client.scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    running = grpc.server(ThreadPoolExecutor(4))
    inference_pb2_grpc.add_InferenceServicer_to_server(scripted, running)
    scripted.address = f"127.0.0.1:{running.add_insecure_port('127.0.0.1:0')}"
    running.start()
    yield scripted
    running.stop(0).wait()


@pytest.fixture
def quick() -> RetryPolicy:
    """Makes calls again without waiting."""
    return RetryPolicy(max_retries=2, first_wait_seconds=0.001)
