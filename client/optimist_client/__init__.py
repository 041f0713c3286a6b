"""A model in one Python object, and clients of Optimist's gRPC API with and without asyncio."""

from optimist_client.answer import (
    Answer,
    Model,
    PredictionPlace,
    PromptPlace,
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
from optimist_client.errors import BatchError, OptimistError
from optimist_client.llm import LLM
from optimist_client.request import Message, Options, SamplingParams
from optimist_client.retry import RetryPolicy
from optimist_client.stream import Stream

__all__ = [
    "LLM",
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "BatchError",
    "Client",
    "Message",
    "Model",
    "OptimistError",
    "Options",
    "PredictionPlace",
    "PromptPlace",
    "Result",
    "RetryPolicy",
    "SamplingParams",
    "Segment",
    "Speculation",
    "Step",
    "Stream",
    "TokenLogprob",
    "Usage",
]
