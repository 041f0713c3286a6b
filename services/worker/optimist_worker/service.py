"""The worker put together from its settings."""

import logging

import torch

from optimist.worker.v1 import worker_pb2_grpc
from optimist_common.errors import SetupError
from optimist_common.metrics import serve_metrics
from optimist_common.server import GrpcServer, until_signal
from optimist_worker.codec import Limits
from optimist_worker.core.cost import CostCurve
from optimist_worker.memory import plan_memory
from optimist_worker.model import load_model
from optimist_worker.runner import Runner
from optimist_worker.servicer import WorkerServicer
from optimist_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)


def build_runner(settings: WorkerSettings) -> Runner:
    """Loads the model and takes the KV memory; raises SetupError if either cannot be had."""
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    model = load_model(settings.model, settings.dtype, settings.device)
    memory = plan_memory(settings, model)
    try:
        runner = Runner(model, memory.num_blocks, settings.block_size, memory.max_model_len)
    except (RuntimeError, MemoryError):
        raise SetupError(
            f"--num-kv-blocks: no memory for {memory.num_blocks} blocks; "
            "lower it or --kv-memory-mib"
        ) from None
    logger.info(
        "%s: %.1f million parameters in %s on %s, %d blocks of %d tokens, sequences up to %d",
        model.name,
        model.num_parameters / 1e6,
        settings.dtype,
        settings.device,
        memory.num_blocks,
        settings.block_size,
        memory.max_model_len,
    )
    return runner


async def serve(settings: WorkerSettings, runner: Runner, curve: CostCurve) -> None:
    """Serves until a signal; raises SetupError if it cannot listen."""
    limits = Limits(
        num_blocks=runner.pool.num_blocks,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )
    serve_metrics(settings.host, settings.metrics_port)
    server = GrpcServer(settings.host, settings.port)
    servicer = WorkerServicer(runner, limits, curve)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.server)
    port = await server.start()
    await server.set_serving(serving=True)
    logger.info("serving on %s:%d", settings.host, port)
    await until_signal()
    await server.stop()
    servicer.close()
