"""The ASGI application, and the server of the gRPC API that runs beside it."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from grpc_health.v1 import health as grpc_health
from grpc_reflection.v1alpha import reflection
from starlette.middleware.cors import CORSMiddleware

from optimist.v1 import inference_pb2
from optimist_common.network.channel import Tls
from optimist_common.network.server import GrpcServer
from optimist_gateway.api.admin import admin_router, health_router, unready_reason
from optimist_gateway.api.grpc.servicer import Authentication as GrpcAuthentication
from optimist_gateway.api.grpc.servicer import InferenceServicer, add_servicer
from optimist_gateway.api.openai.chat import chat_router
from optimist_gateway.api.openai.completions import completion_router
from optimist_gateway.api.openai.errors import add_error_handlers
from optimist_gateway.api.openai.models import model_router, tokenization_router
from optimist_gateway.api.openai.responses.writer import responses_router
from optimist_gateway.api.openapi import add_document
from optimist_gateway.api.page.router import page_router
from optimist_gateway.core.admission import Admission
from optimist_gateway.core.request import Limits
from optimist_gateway.generation.generation import ServedModel, Service
from optimist_gateway.observing.metrics import GatewayMetrics, watch_event_loop
from optimist_gateway.observing.request_record import RequestObserver
from optimist_gateway.schedulers.pool import SchedulerCollector, SchedulerPool
from optimist_gateway.security.keys import Keys, KeySource
from optimist_gateway.server.middleware import AllowedHosts, Authentication, Observation, RequestId
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.structure.grammars import Grammars
from optimist_gateway.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

GRPC_NAME = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
_POLL_SECONDS = 0.25
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request is wrong; `error.param` names the field."},
    "5XX": {"description": "It cannot be answered, or not now."},
}
"""What any endpoint may answer beside 200."""


def create_app(settings: GatewaySettings, tokenizers: Sequence[Tokenizer]) -> FastAPI:
    """Returns the application; it connects to the schedulers while it runs.

    Its state holds the `Service` and the `Keys` as `service` and `keys`; the tokenizers are those
    of `settings.served_models()`. Raises SetupError if keys or certificates cannot be read.
    """
    tracer = settings.tracer()
    models = _served_models(settings, tokenizers, settings.tls())
    metrics = GatewayMetrics(list(models))
    observer = RequestObserver(tracer, access_log=settings.access_log)
    service = _service(settings, models, observer, metrics)
    keys = Keys(
        [
            KeySource("--api-keys", settings.api_keys, settings.api_keys_file),
            KeySource("--admin-keys", settings.admin_keys, settings.admin_keys_file, is_admin=True),
        ]
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        works = [model.run() for model in models.values()]
        tasks = [asyncio.create_task(work) for work in (*works, watch_event_loop(metrics))]
        try:
            async with _serving_grpc(settings, service, keys):
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for model in models.values():
                await model.stop()
            await asyncio.to_thread(tracer.close)

    app = FastAPI(title="Optimist", lifespan=lifespan, redirect_slashes=False, responses=_ERRORS)
    app.state.service = service
    app.state.keys = keys
    _add_layers(app, settings, metrics, observer)
    pools = {name: model.schedulers for name, model in models.items()}
    metrics.registry.register(SchedulerCollector(pools))
    routers = [make(service) for make in (chat_router, completion_router, responses_router)]
    routers += [model_router(service), health_router(service)]
    add_error_handlers(app, metrics)
    for router in (*routers, tokenization_router(service), admin_router(service)):
        app.include_router(router)
    if settings.page:
        app.include_router(page_router())
    add_document(app, service)
    return app


def _served_models(
    settings: GatewaySettings, tokenizers: Sequence[Tokenizer], tls: Tls | None
) -> dict[str, ServedModel]:
    return {
        one.served_name: ServedModel(
            name=one.served_name,
            tokenizer=tokenizer,
            grammars=Grammars(one.model, tokenizer.tool_format, tokenizer.markers),
            schedulers=SchedulerPool(
                one.schedulers, settings.max_num_requests, settings.resume_seconds, tls
            ),
        )
        for one, tokenizer in zip(settings.served_models().values(), tokenizers, strict=True)
    }


def _service(
    settings: GatewaySettings,
    models: dict[str, ServedModel],
    observer: RequestObserver,
    metrics: GatewayMetrics,
) -> Service:
    # More choices than a client may have in progress would never be admitted.
    most = settings.max_num_requests
    most = min(most, settings.max_num_requests_per_key or most)
    admission = Admission(
        max_num_requests=settings.max_num_requests,
        max_num_requests_per_client=settings.max_num_requests_per_key,
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        clock=time.monotonic,
    )
    metrics.running.set_function(lambda: admission.num_requests)
    return Service(
        models=models,
        admission=admission,
        metrics=metrics,
        limits=Limits(
            max_n=min(settings.max_n, most),
            max_prompts=min(settings.max_prompts, most),
            max_choices=most,
            max_prediction_bytes=settings.max_prediction_bytes,
            max_body_bytes=settings.max_body_bytes,
            read_seconds=settings.read_seconds,
            keep_alive_seconds=settings.keep_alive_seconds,
            splits_reasoning=settings.split_reasoning,
        ),
        observer=observer,
    )


def _add_layers(
    app: FastAPI, settings: GatewaySettings, metrics: GatewayMetrics, observer: RequestObserver
) -> None:
    """Wraps the application, the innermost layer first."""
    app.add_middleware(
        Authentication,
        keys=app.state.keys,
        hosts=AllowedHosts([*settings.allowed_hosts, settings.host, *_own_names()]),
        metrics=metrics,
        checks_hosts=bool(settings.allowed_hosts),
        public_metrics=settings.public_metrics,
    )
    if settings.allowed_origins:
        # Browsers ask without a key whether they may ask with one.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST"],
            # Clients bring headers of their own, such as x-stainless-lang; cookies are not taken.
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-ignored-fields", "retry-after", "retry-after-ms"],
        )
    app.add_middleware(RequestId)
    if observer.is_on:
        # Outermost, so that it sees what other layers refuse.
        app.add_middleware(Observation, observer=observer)


def _own_names() -> list[str]:
    """Returns what others on its network call this machine."""
    name = socket.gethostname()
    return [name, name.partition(".")[0], f"{name.partition('.')[0]}.local"] if name else []


@asynccontextmanager
async def _serving_grpc(
    settings: GatewaySettings, service: Service, keys: Keys
) -> AsyncIterator[None]:
    """Serves the gRPC API for the time of the block, if there is a port for it.

    Raises SetupError if the address cannot be bound.
    """
    if not settings.grpc_port:
        yield
        return
    server = GrpcServer(
        settings.host,
        settings.grpc_port,
        _https(settings),
        options=[
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            ("grpc.max_metadata_size", settings.max_header_bytes),
        ],
        interceptors=[GrpcAuthentication(keys, service.metrics)],
    )
    add_servicer(InferenceServicer(service), server.server)
    names = (GRPC_NAME, grpc_health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server.server)
    port = await server.start()
    logger.info("serving gRPC on %s:%d", settings.host, port)
    watcher = asyncio.create_task(_watch(server, service))
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        await server.stop()


def _https(settings: GatewaySettings) -> Tls | None:
    """Returns the certificate that clients see, of whom none is wanted."""
    if not settings.https_cert:
        return None
    certificate, key = Path(settings.https_cert), Path(settings.https_key)
    return Tls(certificate.read_bytes(), key.read_bytes(), authority=None)


async def _watch(server: GrpcServer, service: Service) -> None:
    """Keeps the health service of the gRPC API true."""
    while True:
        await server.set_serving(serving=unready_reason(service) is None)
        await asyncio.sleep(_POLL_SECONDS)
