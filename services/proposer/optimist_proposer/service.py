"""The proposer put together from its settings."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields

from optimist.proposer.v1 import proposer_pb2_grpc
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_common.model_files.directory import check_tokenizer
from optimist_common.model_files.tokenizer import load_tokenizer
from optimist_common.network.server import GrpcServer, until_signal
from optimist_common.observing.metrics import serve_metrics
from optimist_common.observing.tracing import OFF, Tracer
from optimist_common.process import collecting_seldom
from optimist_common.request_log.logs import RequestLogs
from optimist_common.vocabulary import Vocabulary as Tokens
from optimist_proposer.batch import BatchProposer, RequestSpans
from optimist_proposer.core.algorithms import ALGORITHMS
from optimist_proposer.core.live_requests import RequestCache
from optimist_proposer.core.messages import LimitCheck, Limits
from optimist_proposer.following import Following
from optimist_proposer.observing.alignment_log import AlignmentLog
from optimist_proposer.servicer import ProposerServicer
from optimist_proposer.settings import ProposerSettings
from optimist_proposer.store.redis_store import RedisStore
from optimist_proposer.store.store import WriteBehind

logger = logging.getLogger(__name__)


def load_vocabulary(model: str) -> Vocabulary:
    """Returns the text of every token, and the tokenizer as what splits texts.

    Of a directory or hub name only the tokenizer is read, and no code from there is run; raises
    SetupError if there is none.
    """
    check_tokenizer(model, "--model")
    tokenizer = load_tokenizer(model, "--model")

    def encode(text: str) -> list[int]:
        token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    tokens = Tokens(tokenizer.backend_tokenizer)
    size = max(tokenizer.get_vocab().values(), default=-1) + 1
    vocabulary = Vocabulary([tokens[token_id][0] for token_id in range(size)], encode)
    if not vocabulary.newline_token_ids:
        logger.warning("no token of %s ends a line: all of a prediction is one", model)
    return vocabulary


WINDOW_TOKENS = 256
"""Most tokens in a window: as many as schedulers and workers take."""
MAX_BATCH_SIZE = 8192
"""Most opens, observations and closes in a batch together."""
MAX_WAITING_WRITES = 8192
"""Most requests that wait to be written to Redis."""


async def serve(settings: ProposerSettings, vocabulary: Vocabulary) -> None:
    """Serves until a signal; raises SetupError if it cannot start."""
    tracer = settings.tracer()
    async with build_proposer(settings, vocabulary, tracer) as proposer:
        serve_metrics("proposer", settings.host, settings.metrics_port)
        server = GrpcServer(settings.host, settings.port, settings.tls())
        proposer_pb2_grpc.add_ProposerServiceServicer_to_server(
            ProposerServicer(proposer, MAX_BATCH_SIZE), server.server
        )
        port = await server.start()
        # The whole vocabulary stays, and a window takes some thousand objects.
        with collecting_seldom():
            await server.set_serving(serving=True)
            logger.info("serving on %s:%d", settings.host, port)
            await until_signal()
            await server.stop()
    await asyncio.to_thread(tracer.close)


@asynccontextmanager
async def build_proposer(
    settings: ProposerSettings, vocabulary: Vocabulary, tracer: Tracer = OFF
) -> AsyncIterator[BatchProposer]:
    """Yields the proposer that settings describe; raises SetupError for a store out of reach."""
    async with AsyncExitStack() as stack:
        logs = settings.request_logs(vocabulary)
        if logs is not None:
            stack.callback(logs.stop)
        following = build_following(settings, vocabulary, logs)
        spans = RequestSpans(tracer)
        if settings.store == "memory":
            yield BatchProposer(following, spans=spans)
            return
        store = RedisStore(
            settings.store,
            key_prefix=settings.key_prefix,
            ttl_seconds=settings.state_ttl_seconds,
            timeout_ms=settings.redis_timeout_ms,
        )
        await store.start()
        stack.push_async_callback(store.stop)
        writer = WriteBehind(store, MAX_WAITING_WRITES, following.forget)
        stack.push_async_callback(writer.stop)
        task = asyncio.create_task(writer.run())
        stack.callback(task.cancel)
        yield BatchProposer(following, store, writer, spans)


def build_following(
    settings: ProposerSettings, vocabulary: Vocabulary, logs: RequestLogs | None
) -> Following:
    """Returns where requests will live."""
    limits = Limits(**{each.name: getattr(settings, each.name) for each in fields(Limits)})
    return Following(
        ALGORITHMS[settings.algorithm](vocabulary),
        RequestCache(settings.max_requests, settings.max_memory_mb * 1_000_000),
        LimitCheck(limits, vocabulary),
        window_tokens=WINDOW_TOKENS,
        min_value=settings.min_value,
        prompt_tokens=settings.prompt_tokens,
        logs=logs,
        alignment_log=AlignmentLog(vocabulary) if settings.log_level == "debug" else None,
    )
