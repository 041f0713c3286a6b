"""The ASGI application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from optimist_gateway.admission import Admission
from optimist_gateway.api.body_limit import BodyLimit
from optimist_gateway.api.chat import chat_router
from optimist_gateway.api.completions import completion_router
from optimist_gateway.api.errors import add_error_handlers
from optimist_gateway.api.health import health_router
from optimist_gateway.api.models import model_router
from optimist_gateway.generation import Service
from optimist_gateway.limits import Limits
from optimist_gateway.metrics import GatewayMetrics
from optimist_gateway.page.router import page_router
from optimist_gateway.scheduler_client import SchedulerClient
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.tokenizer import Tokenizer


def create_app(settings: GatewaySettings, tokenizer: Tokenizer) -> FastAPI:
    """Returns the application; it connects to the scheduler while it runs."""
    metrics = GatewayMetrics()
    service = Service(
        model_name=settings.model_name,
        tokenizer=tokenizer,
        client=SchedulerClient(settings.scheduler, settings.max_num_requests),
        admission=Admission(settings.max_num_requests, metrics),
        metrics=metrics,
        limits=Limits(
            # More choices than there are places would never be admitted.
            max_n=min(settings.max_n, settings.max_num_requests),
            max_prediction_bytes=settings.max_prediction_bytes,
        ),
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        connection = asyncio.create_task(service.client.run())
        try:
            yield
        finally:
            connection.cancel()
            await asyncio.gather(connection, return_exceptions=True)

    app = FastAPI(
        title="Optimist",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.add_middleware(BodyLimit, max_body_bytes=settings.max_body_bytes)
    add_error_handlers(app, metrics)
    for router in (chat_router, completion_router, model_router, health_router):
        app.include_router(router(service))
    if settings.page:
        app.include_router(page_router())
    return app
