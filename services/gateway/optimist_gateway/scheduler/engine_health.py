"""Follows whether the scheduler's engine makes progress, as its health service tells."""

import asyncio
import logging

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from optimist_common.channel import open_channel
from optimist_common.server import LIVENESS
from optimist_common.tls import Tls

logger = logging.getLogger(__name__)

RECONNECT_SECONDS = 1.0


class EngineHealth:
    """Knows the last word of the scheduler on its own liveness."""

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        """Sets up what `run` follows; the scheduler is at `address`, host:port."""
        self._address, self._tls = address, tls
        self.is_hung = False
        """Whether a step takes so long that the engine must be taken for stuck.

        A scheduler that is not reached is not known to be stuck.
        """

    async def run(self) -> None:
        """Follows the scheduler; returns never."""
        request = health_pb2.HealthCheckRequest(service=LIVENESS)
        async with open_channel(self._address, self._tls) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                try:
                    async for response in stub.Watch(request):
                        self._note(response.status == health_pb2.HealthCheckResponse.NOT_SERVING)
                except grpc.aio.AioRpcError as error:
                    logger.debug("the scheduler's health is not known: %s", error.code().name)
                self._note(False)
                await asyncio.sleep(RECONNECT_SECONDS)

    def _note(self, is_hung: bool) -> None:
        if is_hung and not self.is_hung:
            logger.error("the engine hangs: no step ends")
        self.is_hung = is_hung
