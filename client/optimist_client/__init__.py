"""A client of Optimist's gRPC API, for plain Python and for asyncio."""

from optimist_client.answer import (
    Answer,
    Model,
    PredictionPlace,
    Result,
    Segment,
    Speculation,
    Step,
    TokenLogprob,
    Usage,
)
from optimist_client.async_client import AsyncClient
from optimist_client.async_stream import AsyncStream
from optimist_client.client import Client
from optimist_client.errors import OptimistError
from optimist_client.request import Message, Options
from optimist_client.retry import RetryPolicy
from optimist_client.stream import Stream

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "Message",
    "Model",
    "OptimistError",
    "Options",
    "PredictionPlace",
    "Result",
    "RetryPolicy",
    "Segment",
    "Speculation",
    "Step",
    "Stream",
    "TokenLogprob",
    "Usage",
]
