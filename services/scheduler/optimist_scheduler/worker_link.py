"""The stream of plans to the worker, opened again whenever it breaks."""

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Any

import grpc

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_common.channel import open_channel
from optimist_common.columns import from_bytes
from optimist_scheduler.core.limits import Limits
from optimist_scheduler.core.plan import Plan, StepResult
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.translate import plan_message, step_result

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
DESCRIBE_TIMEOUT_SECONDS = 5.0


class WorkerLostError(Exception):
    """The worker's stream broke, or carried what is not in the contract; the text says how."""


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """What the worker holds."""

    model: str
    limits: Limits
    eos_token_ids: tuple[int, ...]


class WorkerLink:
    """One Execute stream to one worker."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._channel: grpc.aio.Channel | None = None
        self._call: Any = None

    async def connect(self) -> WorkerDescription:
        """Opens the stream, trying until the worker is reached; returns what it holds."""
        pause, told = FIRST_PAUSE_SECONDS, ""
        while True:
            try:
                return await self._open()
            except (grpc.aio.AioRpcError, ValueError) as error:
                await self.close()
                reason = error.code().name if isinstance(error, grpc.RpcError) else str(error)
                if reason != told:
                    address = self._settings.worker
                    logger.info("the worker at %s is not reached: %s", address, reason)
                    told = reason
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def execute(self, plan: Plan) -> StepResult:
        """Runs a plan; raises WorkerLostError if its result cannot be had."""
        try:
            await self._call.write(plan_message(plan))
            message = await self._call.read()
            if message is grpc.aio.EOF:
                raise WorkerLostError("the worker ended the stream")
            return step_result(message)
        except grpc.aio.AioRpcError as error:
            raise WorkerLostError(f"{error.code().name}: {error.details()}") from error
        except asyncio.InvalidStateError as error:
            raise WorkerLostError("the stream is closed") from error
        except ValueError as error:
            raise WorkerLostError(f"a column that is none: {error}") from error

    async def close(self) -> None:
        """Ends the stream; `connect` opens another."""
        if self._call is not None:
            self._call.cancel()
        if self._channel is not None:
            await self._channel.close()
        self._call = self._channel = None

    async def _open(self) -> WorkerDescription:
        await self.close()
        self._channel = open_channel(self._settings.worker)
        stub = worker_pb2_grpc.WorkerServiceStub(self._channel)
        message = await stub.Describe(
            worker_pb2.DescribeRequest(), timeout=DESCRIBE_TIMEOUT_SECONDS
        )
        description = _description(message, self._settings)
        self._call = stub.Execute()
        logger.info(
            "connected to the worker at %s: %s, %d slots, %d blocks of %d tokens",
            self._settings.worker,
            description.model,
            description.limits.max_num_seqs,
            description.limits.num_blocks,
            description.limits.block_size,
        )
        return description


def _description(
    message: worker_pb2.DescribeResponse, settings: SchedulerSettings
) -> WorkerDescription:
    """Reads the worker's description; raises ValueError if nothing could run with it."""
    limits = Limits(
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
        block_size=message.block_size,
        num_blocks=message.num_blocks,
        max_num_seqs=message.max_num_seqs,
        max_num_batched_tokens=message.max_num_batched_tokens,
        max_num_waiting=settings.max_num_waiting,
        num_speculative_tokens=settings.num_speculative_tokens,
    )
    sizes = ("vocab_size", "max_model_len", "block_size", "num_blocks", "max_num_seqs")
    for name in (*sizes, "max_num_batched_tokens"):
        if getattr(limits, name) < 1:
            raise ValueError(f"it says {name} is {getattr(limits, name)}")
    if settings.max_num_seqs:
        limits = replace(limits, max_num_seqs=min(settings.max_num_seqs, limits.max_num_seqs))
    if settings.max_num_batched_tokens:
        budget = min(settings.max_num_batched_tokens, limits.max_num_batched_tokens)
        limits = replace(limits, max_num_batched_tokens=budget)
    eos_token_ids = tuple(int(token_id) for token_id in from_bytes(message.eos_token_ids))
    return WorkerDescription(message.model, limits, eos_token_ids)
