"""Follows what a scheduler's health service tells of it."""

import asyncio
import logging
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from optimist_common.network.server import LIVENESS

logger = logging.getLogger(__name__)

RECONNECT_SECONDS = 1.0
# What hangs says so twice, with two names, one right behind the other.
_SETTLE_SECONDS = 0.1


class PeerHealth:
    """Knows a scheduler's last word on itself; one that is not reached is not known to be ill."""

    def __init__(self, target: str, on_change: Callable[[], None]) -> None:
        """Sets up what `run` follows.

        Args:
            target: What logs call the scheduler.
            on_change: Called when anything changed.
        """
        self._target, self._on_change = target, on_change
        self.is_hung = False
        """Whether a step takes so long that the engine must be taken for stuck."""
        self.is_draining = False
        """Whether it takes no more requests: it ends, or has no worker."""

    async def run(self, channel: grpc.aio.Channel) -> None:
        """Follows the scheduler; returns never."""
        stub = health_pb2_grpc.HealthStub(channel)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(stub, LIVENESS, self._note_hung))
            tasks.create_task(self._watch(stub, "", self._note_draining))

    async def _watch(
        self, stub: health_pb2_grpc.HealthStub, name: str, note: Callable[[bool], None]
    ) -> None:
        request = health_pb2.HealthCheckRequest(service=name)
        while True:
            try:
                async for response in stub.Watch(request):
                    note(response.status == health_pb2.HealthCheckResponse.NOT_SERVING)
            except grpc.aio.AioRpcError as error:
                logger.debug("the health of %s is not known: %s", self._target, error.code().name)
            note(False)
            await asyncio.sleep(RECONNECT_SECONDS)

    def _note_hung(self, is_hung: bool) -> None:
        if is_hung == self.is_hung:
            return
        self.is_hung = is_hung
        if is_hung:
            logger.error("the engine at %s hangs: no step ends", self._target)
        self._on_change()

    def _note_draining(self, is_draining: bool) -> None:
        if is_draining != self.is_draining:
            self.is_draining = is_draining
            asyncio.get_running_loop().call_later(_SETTLE_SECONDS, self._on_change)
