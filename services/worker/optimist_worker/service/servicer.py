"""The gRPC face of the worker: translates messages, and decides only who may send plans."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from optimist.common.v1 import draft_source_pb2
from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_common.columns import to_bytes
from optimist_worker.core.plan import PlanError
from optimist_worker.core.recurrence.states import state_bytes
from optimist_worker.execution.executor import DeviceLostError
from optimist_worker.runner.cost import MeasuredCosts
from optimist_worker.runner.runner import Runner
from optimist_worker.service.observing import RequestSpans
from optimist_worker.service.plan_stream import MOST_PLANS, PlanStream, run_plans

logger = logging.getLogger(__name__)


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Serves Describe and Execute; the model runs on a thread of its own."""

    def __init__(
        self,
        runner: Runner,
        costs: MeasuredCosts,
        spans: RequestSpans | None = None,
        thread: ThreadPoolExecutor | None = None,
    ) -> None:
        """Serves a runner on the thread that has loaded it; None: on a new one."""
        self._runner, self._costs, self._spans = runner, costs, spans
        self._stream: PlanStream | None = None
        """The newest."""
        self._at_work: PlanStream | None = None
        """The one whose plans the model's thread runs; written by that thread alone."""
        # One thread: plans of an older stream are over before a newer one's begin.
        self._executor = thread or ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.DescribeResponse:
        """Describes the model and the memory."""
        engine, costs = self._runner.engine, self._costs
        sizes, drafter = engine.state.sizes, engine.drafter
        return worker_pb2.DescribeResponse(
            model=engine.model.name,
            vocab_size=engine.model.vocab_size,
            max_model_len=sizes.max_model_len,
            block_size=sizes.block_size,
            num_blocks=sizes.num_blocks,
            max_num_seqs=sizes.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            eos_token_ids=to_bytes(engine.model.eos_token_ids),
            cost_num_tokens=to_bytes(list(costs.passes)),
            cost_us=to_bytes(list(costs.passes.values())),
            drafter=draft_source_pb2.DRAFT_SOURCE_UNSPECIFIED
            if drafter is None
            else draft_source_pb2.DraftSource.Value(f"DRAFT_SOURCE_{drafter.source.name}"),
            max_drafter_tokens=0 if drafter is None else drafter.max_tokens,
            max_drafter_depth=0 if drafter is None else drafter.max_depth,
            drafter_us=to_bytes(list(costs.drafter.values())),
            row_key_ps=costs.row_key_ps,
            token_key_ps=costs.token_key_ps,
            num_pipeline_stages=engine.executor.num_stages,
            pads_passes=not engine.state.table.reads_sizes,
            slot_state_bytes=state_bytes(engine.model.states, engine.model.dtype),
        )

    async def Execute(  # noqa: N802
        self,
        request_iterator: AsyncIterator[worker_pb2.ExecuteRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        """Runs plans in turn and answers each run.

        A malformed plan ends the stream, and so does a newer stream.
        """
        if self._stream is not None:
            logger.info("a new stream takes over")
            self._stream.replace()
        most = max(MOST_PLANS, self._runner.engine.executor.most_plans)
        stream = self._stream = PlanStream(request_iterator, most)
        work = asyncio.get_running_loop().run_in_executor(self._executor, self._run, stream)
        try:
            while (response := await stream.next_answer()) is not None:
                yield response
                stream.sent()
            await work
            stream.raise_read_error()
            if stream.replaced:
                await context.abort(grpc.StatusCode.ABORTED, "another stream took the worker over")
        except PlanError as error:
            logger.warning("malformed plan: %s", error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except DeviceLostError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker's device is lost")
        finally:
            stream.close()

    def seconds_at_work(self) -> float:
        """Returns how long the running step has taken; 0 if none runs."""
        stream = self._at_work
        return 0.0 if stream is None else stream.seconds_at_work()

    def close(self) -> None:
        """Lets the running plan end, and starts no other."""
        if self._stream is not None:
            self._stream.close()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _run(self, stream: PlanStream) -> None:
        """Runs a stream's plans; called on the model's thread, whoever still waits for answers."""
        self._at_work = stream
        try:
            try:
                run_plans(self._runner, stream, self._spans)
            except RuntimeError:
                # What a lost device refuses is not always a step.
                self._runner.engine.executor.check_device()
                raise
        except DeviceLostError as error:
            # Only a new process gets the device back; its supervisor starts one.
            logger.critical("the device is lost, the worker ends: %s", error)
            signal.raise_signal(signal.SIGTERM)
            raise
        finally:
            self._at_work = None
