"""The worker put together from its settings."""

import asyncio
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import torch

from optimist.worker.v1 import worker_pb2_grpc
from optimist_common.errors import SetupError
from optimist_common.network.server import GrpcServer, until_signal, watch_for_hangs
from optimist_common.observing.metrics import serve_metrics
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.plan import Sizes
from optimist_worker.drafters.build import (
    DrafterWeights,
    build_drafter,
    drafter_block_bytes,
    load_drafter,
)
from optimist_worker.drafters.heads.eagle import EagleHead
from optimist_worker.execution.commands import LeadingRank
from optimist_worker.execution.executor import Executor, LocalExecutor
from optimist_worker.execution.group import Group
from optimist_worker.execution.stage import FirstStage, Stage
from optimist_worker.execution.stage_link import StageLink
from optimist_worker.execution.stage_pass import StageMasks
from optimist_worker.execution.step import Step
from optimist_worker.grammar.masks import Masks
from optimist_worker.model.division import StagePosition
from optimist_worker.model.fused import fuse
from optimist_worker.model.kernel_check import check_kernels, leave_kernels, replaced_kernels
from optimist_worker.model.loading import choose_device
from optimist_worker.model.memory import DeviceState, plan_memory
from optimist_worker.model.model import Model, load_model
from optimist_worker.model.rounding import Bits
from optimist_worker.runner.cost import MeasuredCosts, measure_costs
from optimist_worker.runner.footprint import measure_free
from optimist_worker.runner.graph_check import capture_steps, check_graphs
from optimist_worker.runner.runner import Engine, Runner
from optimist_worker.service.observing import DRAFTER_ERRORS, REPLACED_KERNELS, RequestSpans
from optimist_worker.service.servicer import WorkerServicer
from optimist_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)


class LoadedWorker(NamedTuple):
    """What serves, and the only thread that computes."""

    runner: Runner
    costs: MeasuredCosts
    thread: ThreadPoolExecutor


def load_worker(settings: WorkerSettings, group: Group | None = None) -> LoadedWorker:
    """Loads and times the model on the thread that will run it; see `build_runner`.

    OpenMP has helper threads for each thread that computes. If two do, there are more of them than
    cores, and helpers that wait go to sleep at once: a pass then takes half as long again.
    """

    def load() -> tuple[Runner, MeasuredCosts]:
        runner = build_runner(settings, group)
        return runner, measure_costs(runner, settings.cost_seconds)

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
    try:
        return LoadedWorker(*thread.submit(load).result(), thread)
    except KeyboardInterrupt:
        # A thread cannot be interrupted, and the interpreter would wait for it.
        os._exit(130)


def build_runner(settings: WorkerSettings, group: Group | None = None) -> Runner:
    """Loads the model and takes the KV memory; raises SetupError if either cannot be had.

    All ranks of a group, that hold the model together, call this, and the first commands the
    others.
    """
    bits, dtype = _choose_bits(settings)
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    stage = None
    if group is not None and group.ranks.num_stages > 1:
        stage = StagePosition(group.ranks.stage, group.ranks.num_stages)
    model = load_model(
        settings.model,
        dtype,
        settings.device,
        dummy_weights=settings.dummy_weights,
        tensor_parallel_size=settings.tensor_parallel_size,
        stage=stage,
        kernels=settings.kernels,
    )
    weights = load_drafter(settings, model)
    num_parameters = model.num_parameters
    # After the drafter, which may copy weights of the model.
    models = [model, weights] if isinstance(weights, Model) else [model]
    begin = time.monotonic()
    for each in models:
        if settings.kernels:
            check_kernels(each, settings.block_size)
        else:
            leave_kernels(each)
        fuse(each, bits if each is model else None)
    logger.info("compared kernels and layers for %.1f s", time.monotonic() - begin)
    if isinstance(weights, EagleHead):
        weights.fuse(model.module.get_output_embeddings())
    extra = drafter_block_bytes(weights, model, settings.block_size)
    sizes = plan_memory(settings, model, extra, measure_free(settings, model))
    if group is not None:
        num_blocks, max_model_len = group.least([sizes.num_blocks, sizes.max_model_len])
        sizes = replace(sizes, num_blocks=num_blocks, max_model_len=max_model_len)
    try:
        runner = Runner(_build_engine(settings, model, weights, sizes, group))
    except (RuntimeError, MemoryError):
        raise SetupError(
            f"--num-kv-blocks: no memory for {sizes.num_blocks} blocks; lower it, "
            "--kv-memory-mib or --gpu-memory-utilization"
        ) from None
    has_graphs = runner.engine.executor.uses_graphs
    for name in [*replaced_kernels(), *["cuda_graphs"] * (has_graphs > check_graphs(runner))]:
        REPLACED_KERNELS.labels(name).set(1)
    capture_steps(runner)
    logger.info(
        "%s: %.1f million parameters in %s on %s, %d blocks of %d tokens, sequences up to %d",
        model.name,
        num_parameters / 1e6,
        str(model.dtype).removeprefix("torch."),
        model.device,
        sizes.num_blocks,
        sizes.block_size,
        sizes.max_model_len,
    )
    return runner


def _choose_bits(settings: WorkerSettings) -> tuple[Bits | None, str]:
    """Returns the bits that weights are rounded to, and the dtype to load them in."""
    if settings.quantization == "none":
        return None, settings.dtype
    if choose_device(settings.device).type != "cpu":
        raise SetupError(
            f"--quantization: {settings.quantization} is for the CPU; on a GPU leave it out and "
            "serve a checkpoint that is quantised already (AWQ, GPTQ, fp8)"
        )
    if settings.dtype not in ("auto", "bfloat16"):
        raise SetupError(
            f"--quantization: {settings.quantization} computes in bfloat16, not {settings.dtype}; "
            "choose --dtype bfloat16"
        )
    return 4 if settings.quantization == "int4" else 8, "bfloat16"


def _build_engine(
    settings: WorkerSettings,
    model: Model,
    weights: DrafterWeights | None,
    sizes: Sizes,
    group: Group | None,
) -> Engine:
    # All stages open their lines at the same time.
    link = None if group is None or model.cut is None else StageLink(group.ranks)
    state = DeviceState(model, sizes)

    def note_failure(number: int) -> None:
        DRAFTER_ERRORS.inc()
        if group is not None and link is None:
            group.require_all(f"failure {number} of the drafter")

    drafter, tap = build_drafter(settings, weights, model, state, note_failure)
    rule = AcceptanceRule(settings.acceptance)
    step = Step(model, state, drafter, tap, rule)
    chooses = model.cut is None or model.cut.position.is_last
    masks = (Masks if chooses else StageMasks)(settings.model, model)
    executor: Executor
    if group is None:
        # How recurrent layers go through a pass depends on the sizes of its rows.
        uses_graphs = settings.cuda_graphs and state.recurrent is None
        executor = LocalExecutor(step, masks, model.device, uses_graphs=uses_graphs)
    elif link is not None and model.cut is not None:
        kind = FirstStage if group.ranks.is_leader else Stage
        executor = kind(model, model.cut, step, masks, link)
    elif group.ranks.is_leader:
        executor = LeadingRank(step, masks, model.device, group)
    else:
        executor = LocalExecutor(step, masks, model.device, uses_graphs=False)
    return Engine(model, state, executor, drafter, rule)


async def serve(settings: WorkerSettings, loaded: LoadedWorker) -> None:
    """Serves until a signal; raises SetupError if it cannot listen."""
    serve_metrics("worker", settings.host, settings.metrics_port)
    server = GrpcServer(settings.host, settings.port, settings.tls())
    tracer = settings.tracer()
    spans = RequestSpans(tracer, of_passes=settings.trace_passes)
    servicer = WorkerServicer(loaded.runner, loaded.costs, spans, loaded.thread)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.server)
    port = await server.start()
    await server.set_serving(serving=True)
    logger.info("serving on %s:%d", settings.host, port)
    watching = asyncio.create_task(
        watch_for_hangs(server, servicer.seconds_at_work, settings.hang_seconds, is_own=True)
    )
    await until_signal()
    watching.cancel()
    await server.stop()
    servicer.close()
    await asyncio.to_thread(tracer.close)
