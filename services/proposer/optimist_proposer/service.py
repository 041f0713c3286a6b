"""The proposer put together from its settings."""

import logging
from collections.abc import Set

from optimist.proposer.v1 import proposer_pb2_grpc
from optimist_common.metrics import serve_metrics
from optimist_common.server import GrpcServer, until_signal
from optimist_proposer.batch import BatchProposer
from optimist_proposer.core.algorithm import Algorithm
from optimist_proposer.core.anchor import AnchorAlgorithm
from optimist_proposer.core.exact import ExactAlgorithm
from optimist_proposer.core.line import LineAlgorithm
from optimist_proposer.memory import MemoryStore
from optimist_proposer.redis_store import RedisStore
from optimist_proposer.servicer import ProposerServicer
from optimist_proposer.settings import ProposerSettings
from optimist_proposer.store import CursorStore

logger = logging.getLogger(__name__)

_ALGORITHMS: dict[str, type[Algorithm]] = {
    "anchor": AnchorAlgorithm,
    "line": LineAlgorithm,
    "exact": ExactAlgorithm,
}


async def serve(settings: ProposerSettings, newline_token_ids: Set[int]) -> None:
    """Serves until a signal; raises SetupError if it cannot start."""
    algorithm = _ALGORITHMS[settings.algorithm](newline_token_ids)
    store = build_store(settings, algorithm)
    try:
        await store.start()
        serve_metrics(settings.host, settings.metrics_port)
        server = GrpcServer(settings.host, settings.port)
        proposer = BatchProposer(
            algorithm, store, settings.window_tokens, settings.max_prediction_tokens
        )
        proposer_pb2_grpc.add_ProposerServiceServicer_to_server(
            ProposerServicer(proposer, settings.max_batch_size), server.server
        )
        port = await server.start()
        await server.set_serving(serving=True)
        logger.info("serving on %s:%d", settings.host, port)
        await until_signal()
        await server.stop()
    finally:
        await store.stop()


def build_store(settings: ProposerSettings, algorithm: Algorithm) -> CursorStore:
    """Returns the store that the settings name, not yet started."""
    max_bytes = settings.max_memory_mb * 1_000_000
    if settings.store == "memory":
        return MemoryStore(settings.max_requests, max_bytes)
    return RedisStore(
        settings.store,
        key_prefix=settings.key_prefix,
        ttl_seconds=settings.state_ttl_seconds,
        timeout_ms=settings.redis_timeout_ms,
        cache_bytes=max_bytes,
        prepare=algorithm.prepare,
    )
