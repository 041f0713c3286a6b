"""The server of the gRPC API."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from optimist.v1 import inference_pb2, inference_pb2_grpc
from optimist_common.network.server import GrpcServer
from optimist_gateway.fronts.grpc.servicer import Authentication, InferenceServicer
from optimist_gateway.generation.generation import Service
from optimist_gateway.security.keys import Keys
from optimist_gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

SERVICE_NAME = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
_POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Https:
    """The certificate that clients see."""

    certificate: bytes
    key: bytes

    def server_credentials(self) -> grpc.ServerCredentials:
        """Returns what a server needs that asks clients for no certificate."""
        return grpc.ssl_server_credentials([(self.key, self.certificate)])


@asynccontextmanager
async def serving_grpc(
    settings: GatewaySettings, service: Service, keys: Keys, is_ready: Callable[[], bool]
) -> AsyncIterator[None]:
    """Serves the gRPC API for the time of the block, if there is a port for it.

    Args:
        settings: Address, certificate and limits.
        service: What all requests share.
        keys: The keys that are valid.
        is_ready: Returns whether requests can be served, for the health service.

    Raises:
        SetupError: The address cannot be bound.
    """
    if not settings.grpc_port:
        yield
        return
    server = GrpcServer(
        settings.host,
        settings.grpc_port,
        _https(settings),
        options=[
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            ("grpc.max_metadata_size", settings.max_header_bytes),
        ],
        interceptors=[Authentication(keys, service.metrics)],
    )
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceServicer(service), server.server)
    names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server.server)
    port = await server.start()
    logger.info("serving gRPC on %s:%d", settings.host, port)
    watcher = asyncio.create_task(_watch(server, is_ready))
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        await server.stop()


def _https(settings: GatewaySettings) -> Https | None:
    if not settings.https_cert:
        return None
    return Https(Path(settings.https_cert).read_bytes(), Path(settings.https_key).read_bytes())


async def _watch(server: GrpcServer, is_ready: Callable[[], bool]) -> None:
    """Keeps the health service true."""
    while True:
        await server.set_serving(serving=is_ready())
        await asyncio.sleep(_POLL_SECONDS)
