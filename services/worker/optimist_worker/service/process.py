"""The worker put together from its settings."""

import asyncio
import logging

import torch

from optimist.worker.v1 import worker_pb2_grpc
from optimist_common.errors import SetupError
from optimist_common.network.server import GrpcServer, until_signal, watch_for_hangs
from optimist_common.observing.metrics import serve_metrics
from optimist_worker.core.acceptance.acceptance_rule import AcceptanceRule
from optimist_worker.drafters.build import (
    DrafterWeights,
    build_drafter,
    drafter_block_bytes,
    load_drafter,
)
from optimist_worker.execution.codec import Limits
from optimist_worker.execution.commands import CommandedRanks
from optimist_worker.execution.group import Group
from optimist_worker.execution.stage import Stage
from optimist_worker.execution.stage_commands import CommandedStages
from optimist_worker.execution.stage_link import StageLink
from optimist_worker.execution.stage_trace import StageTrace
from optimist_worker.model.masks import Masks
from optimist_worker.model.memory import Memory, plan_memory
from optimist_worker.model.model import Model, load_model
from optimist_worker.model.stage_split import StagePlace
from optimist_worker.model.state import DeviceState, Sizes
from optimist_worker.runner.cost import MeasuredCosts
from optimist_worker.runner.engine import Engine
from optimist_worker.runner.runner import OtherRanks, Runner
from optimist_worker.service.request_spans import RequestSpans
from optimist_worker.service.servicer import WorkerServicer
from optimist_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)


def build_runner(settings: WorkerSettings, group: Group | None = None) -> Runner:
    """Loads the model and takes the KV memory.

    Args:
        settings: The worker's.
        group: The ranks that hold the model together, all of which call this, and the first of
            which commands the others; None: it holds it alone.

    Raises:
        SetupError: Either cannot be had.
    """
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    model = load_model(
        settings.model,
        settings.dtype,
        settings.device,
        dummy_weights=settings.dummy_weights,
        tensor_parallel_size=settings.tensor_parallel_size,
        stage=None if group is None else _find_place(group),
    )
    weights = load_drafter(settings, model)
    extra = drafter_block_bytes(weights, model, settings.block_size)
    memory = plan_memory(settings, model, extra)
    if group is not None:
        memory = Memory(*group.least([memory.num_blocks, memory.max_model_len]))
    sizes = Sizes(
        num_blocks=memory.num_blocks,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=memory.max_model_len,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )
    try:
        stage = None if group is None else _join_stages(settings, group, model)
        engine = _build_engine(settings, model, weights, sizes, stage)
        runner = Runner(engine, None if group is None else _command(group, stage))
    except (RuntimeError, MemoryError):
        raise SetupError(
            f"--num-kv-blocks: no memory for {memory.num_blocks} blocks; "
            "lower it or --kv-memory-mib"
        ) from None
    logger.info(
        "%s: %.1f million parameters in %s on %s, %d blocks of %d tokens, sequences up to %d",
        model.name,
        model.num_parameters / 1e6,
        str(model.dtype).removeprefix("torch."),
        model.device,
        memory.num_blocks,
        settings.block_size,
        memory.max_model_len,
    )
    if runner.engine.rule is AcceptanceRule.SYNTHETIC:
        logger.warning("drafts are accepted by chance: every text is meaningless")
    return runner


def _find_place(group: Group) -> StagePlace | None:
    ranks = group.ranks
    return StagePlace(ranks.stage, ranks.num_stages) if ranks.num_stages > 1 else None


def _join_stages(settings: WorkerSettings, group: Group, model: Model) -> Stage | None:
    if model.cut is None:
        return None
    trace = StageTrace(settings.stage_trace, group.ranks.stage)
    return Stage(model, model.cut, StageLink(group.ranks), trace)


def _command(group: Group, stage: Stage | None) -> OtherRanks | None:
    """Returns the other ranks, if this is the first."""
    if not group.ranks.is_leader:
        return None
    return CommandedRanks(group) if stage is None else CommandedStages(stage)


def _build_engine(
    settings: WorkerSettings,
    model: Model,
    weights: DrafterWeights | None,
    sizes: Sizes,
    stage: Stage | None,
) -> Engine:
    state = DeviceState(model, sizes)
    built = build_drafter(settings, weights, model, state)
    masks = Masks(settings.model, model)
    return Engine(
        model,
        state,
        masks if stage is None else stage.make_masks(masks),
        drafter=None if built is None else built.drafter,
        tap=None if built is None else built.tap,
        rule=AcceptanceRule(settings.acceptance),
        synthetic_rate=settings.synthetic_rate,
        # What ranks say to each other inside a captured step has not been tried.
        uses_graphs=settings.cuda_graphs and settings.num_ranks == 1,
        stage=stage,
    )


def limits_of(settings: WorkerSettings, runner: Runner) -> Limits:
    """Returns what plans must keep to."""
    return Limits(
        num_blocks=runner.engine.state.sizes.num_blocks,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )


async def serve(settings: WorkerSettings, runner: Runner, costs: MeasuredCosts) -> None:
    """Serves until a signal; raises SetupError if it cannot listen."""
    limits = limits_of(settings, runner)
    serve_metrics(settings.host, settings.metrics_port)
    server = GrpcServer(settings.host, settings.port, settings.tls())
    tracer = settings.tracer()
    spans = RequestSpans(tracer, of_passes=settings.trace_passes)
    servicer = WorkerServicer(runner, limits, costs, spans)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.server)
    port = await server.start()
    await server.set_serving(serving=True)
    logger.info("serving on %s:%d", settings.host, port)
    watching = asyncio.create_task(
        watch_for_hangs(server, servicer.seconds_at_work, settings.hang_seconds)
    )
    await until_signal()
    watching.cancel()
    await server.stop()
    servicer.close()
    await asyncio.to_thread(tracer.close)
