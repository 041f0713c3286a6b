"""A gateway with its gRPC API in front of the fake scheduler."""

from collections.abc import AsyncIterator

import httpx
import pytest

from optimist_client import AsyncClient, RetryPolicy
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import serving, until_healthy
from tests.stack import free_port


@pytest.fixture
def grpc_settings(settings: GatewaySettings) -> GatewaySettings:
    return settings.model_copy(update={"grpc_port": free_port()})


@pytest.fixture
async def address(grpc_settings: GatewaySettings, tokenizer: Tokenizer) -> AsyncIterator[str]:
    """The gRPC API's host:port."""
    async with serving(grpc_settings, tokenizer) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as http:
            await until_healthy(http)
        yield f"127.0.0.1:{grpc_settings.grpc_port}"


@pytest.fixture
async def inference(address: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(address, timeout=20, retries=RetryPolicy(max_retries=0)) as client:
        yield client
