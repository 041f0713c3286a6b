"""The gRPC face of the worker: translates messages, and decides only who may send plans."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_common.columns import to_bytes
from optimist_worker.codec import Limits, decode_plan, encode_result
from optimist_worker.core.plan import PlanError, StepResult
from optimist_worker.metrics import observe_step
from optimist_worker.runner import Runner
from optimist_worker.stream import PlanStream

logger = logging.getLogger(__name__)


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Serves Describe and Execute; the model runs on a thread of its own."""

    def __init__(self, runner: Runner, limits: Limits) -> None:
        self._runner, self._limits = runner, limits
        self._stream: PlanStream | None = None
        # One thread: plans of an older stream are over before a newer one's begin.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")

    async def Describe(  # noqa: N802
        self,
        request: worker_pb2.DescribeRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> worker_pb2.DescribeResponse:
        """Describes the model and the memory."""
        runner = self._runner
        return worker_pb2.DescribeResponse(
            model=runner.model.name,
            vocab_size=runner.model.vocab_size,
            max_model_len=runner.max_model_len,
            block_size=runner.pool.block_size,
            num_blocks=runner.pool.num_blocks,
            max_num_seqs=self._limits.max_num_seqs,
            max_num_batched_tokens=self._limits.max_num_batched_tokens,
            eos_token_ids=to_bytes(runner.model.eos_token_ids),
        )

    async def Execute(  # noqa: N802
        self,
        request_iterator: AsyncIterator[worker_pb2.ExecuteRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        """Runs plans in turn; a malformed one ends the stream, and so does a newer stream."""
        if self._stream is not None:
            logger.info("a new stream takes over")
            self._stream.replace()
        stream = self._stream = PlanStream(request_iterator)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, self._runner.release_all)
            while (request := await stream.next()) is not None:
                yield await loop.run_in_executor(self._executor, self._execute, request)
            if stream.replaced:
                await context.abort(grpc.StatusCode.ABORTED, "another stream took the worker over")
        except PlanError as error:
            logger.warning("malformed plan: %s", error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            stream.close()

    def close(self) -> None:
        """Lets the running plan end, and starts no other."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteResponse:
        start = time.perf_counter_ns()
        result = self._runner.execute(decode_plan(request, self._limits))
        step_ns = time.perf_counter_ns() - start
        observe_step(result, step_ns / 1e9)
        _log_errors(result)
        return encode_result(result, step_ns)


def _log_errors(result: StepResult) -> None:
    for row in result.rows:
        if row.error is not None:
            logger.warning("plan %d, slot %d: %s", result.sequence, row.slot, row.error)
