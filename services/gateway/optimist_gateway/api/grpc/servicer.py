"""Answers the calls of `optimist.v1.Inference`, those with a valid key; errors as statuses."""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Never, TypeAlias

import grpc
from google.protobuf.message_factory import GetMessageClass

from optimist.v1 import inference_pb2
from optimist_gateway.api.admin import set_priority
from optimist_gateway.api.grpc.messages import (
    generation_request,
    read_request,
    speculation_message,
    step_response,
    usage_message,
)
from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.error import FAILED, RETRY_SECONDS, ApiError
from optimist_gateway.core.request import Request
from optimist_gateway.generation.generation import Generation, ServedModel, Service
from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.schedulers.requests import SchedulerUnavailableError
from optimist_gateway.security.beside import beside
from optimist_gateway.security.keys import Keys, current_client

logger = logging.getLogger(__name__)

GENERATE = "/optimist.v1.Inference/Generate"
_RPC = {"rpc.system": "grpc", "rpc.service": "optimist.v1.Inference", "rpc.method": "Generate"}
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_OPEN = "/grpc.health.v1.Health/"
"""Beginning of the methods that anybody may call."""
_ADMIN = frozenset({"/optimist.v1.Inference/SetPriority"})
"""Methods for admin keys only."""
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


async def abort(context: Context, error: ApiError) -> Never:
    """Ends a call with an error, whose details for programs are metadata; never returns."""
    metadata = {}
    if error.code is not None:
        metadata["optimist-error-code"] = error.code
    if error.param is not None:
        # A name may have a key of the request's own in it; metadata is printable ASCII.
        metadata["optimist-error-field"] = error.param.encode("unicode_escape").decode()
    if error.status in (429, 503):
        seconds = RETRY_SECONDS if error.retry_seconds is None else error.retry_seconds
        metadata["retry-after"] = f"{seconds:.3f}"
    code = _CODES.get(error.status, grpc.StatusCode.INTERNAL)
    await context.abort(code, error.message, tuple(metadata.items()))
    raise AssertionError("a call was aborted and goes on")


def trace_parent(context: Context) -> str:
    """Returns the W3C traceparent among a call's metadata; empty without exactly one."""
    values = [value for name, value in context.invocation_metadata() or () if name == "traceparent"]
    return str(values[0]) if len(values) == 1 else ""


class Authentication(grpc.aio.ServerInterceptor):
    """Asks every call but health checks for a key, if there are keys, and notes whose it is.

    Admin methods need an admin key, whether other calls need a key or not.
    """

    def __init__(self, keys: Keys, metrics: GatewayMetrics) -> None:
        self._keys, self._metrics = keys, metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Passes a call on, or returns a handler that refuses it."""
        details = handler_call_details
        needs_admin = details.method in _ADMIN
        if needs_admin or (self._keys.asks_clients and not details.method.startswith(_OPEN)):
            where = "in the metadata as authorization: Bearer KEY"
            try:
                client = self._keys.require(_shown_key(details), where, needs_admin=needs_admin)
            except ApiError as error:
                return self._refusal(error)
            current_client.set(client)
        return await continuation(details)

    def _refusal(self, error: ApiError) -> _Handler:
        self._metrics.requests.labels("none", str(error.status)).inc()
        self._metrics.count_refusal(error.status, str(error.code))

        async def refuse(_request: Any, context: Context) -> None:
            await abort(context, error)

        return grpc.unary_unary_rpc_method_handler(refuse)


def _shown_key(details: grpc.HandlerCallDetails) -> bytes | None:
    """Returns the key of `authorization: Bearer`; None without exactly one."""
    shown = set()
    for key, value in details.invocation_metadata:
        scheme, _, secret = str(value).partition(" ")
        if key == "authorization" and scheme.lower() == "bearer":
            shown.add(secret.strip())
    return shown.pop().encode() if len(shown) == 1 else None


async def _pieces(generation: Generation) -> AsyncGenerator[tuple[int, Piece], None]:
    """Yields the pieces of a generation, each with the index of its choice, while it runs.

    It pauses until what came is read. Raises as `Generation.running` and `Generation.wait` do.
    """
    waiting: asyncio.Queue[tuple[int, Piece] | None] = asyncio.Queue()
    generation.ended.add_done_callback(lambda _: waiting.put_nowait(None))

    def take(index: int, piece: Piece) -> None:
        waiting.put_nowait((index, piece))
        generation.pause()

    async with generation.running(take):
        while (item := await waiting.get()) is not None:
            yield item
            if waiting.empty():
                generation.resume()
        await generation.wait()


class InferenceServicer:
    """Makes a generation of every call; what it may ask for is what the REST API allows."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def Generate(  # noqa: N802 (the contract's name)
        self, request: bytes, context: Context
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """Yields the steps of all answers and a summary; a call that is cancelled ends them."""
        observer = self._service.observer
        record = observer.begin("text_completion", _RPC, trace_parent(context))
        record.outcome = "disconnected"
        try:
            self._service.admission.require_room(current_client.get().name)
            message = await beside(partial(read_request, request), len(request))
            if message.HasField("chat"):
                record.operation = "chat"
            name = self._service.default_model.name
            wanted = await beside(partial(generation_request, message, name), len(request))
            async with aclosing(self._events(wanted, context)) as events:
                async for event in events:
                    if event.HasField("summary"):
                        record.outcome = "200"
                    yield event
        except ApiError as error:
            record.outcome, record.error = str(error.status), error.code or str(error.status)
            self._service.metrics.count_refusal(error.status, record.error)
            await abort(context, error)
        except Exception:
            logger.exception("a call failed")
            record.outcome, record.error = "500", "internal"
            # gRPC would send what went wrong.
            await abort(context, ApiError(500, FAILED, code="internal"))
        finally:
            self._service.metrics.requests.labels(GENERATE, record.outcome).inc()
            observer.end(record, GENERATE, {}, failed=record.outcome.startswith("5"))

    async def _events(
        self, wanted: Request, context: Context
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        request_id = f"gen-{uuid.uuid4().hex}"
        generation = Generation(self._service, wanted, request_id)
        await context.send_initial_metadata((("x-request-id", request_id),))
        async with aclosing(_pieces(generation)) as pieces:
            async for index, piece in pieces:
                yield step_response(index, piece)
        usage = generation.usage()
        summary = inference_pb2.Summary(
            request_id=generation.request_id,
            model=generation.model.name,
            usage=usage_message(usage),
            speculation=speculation_message(usage) if wanted.include_speculation else None,
        )
        yield inference_pb2.GenerateResponse(summary=summary)

    async def ListModels(  # noqa: N802 (the contract's name)
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        """Returns the models that a scheduler serves; an error if there are none."""
        known, errors = [], []
        for model in self._service.models.values():
            try:
                known.append(_describe(model))
            except SchedulerUnavailableError as error:
                errors.append(error)
        if not known:
            await abort(context, errors[0])
        return inference_pb2.ListModelsResponse(models=known)

    async def GetModel(  # noqa: N802 (the contract's name)
        self, request: inference_pb2.GetModelRequest, context: Context
    ) -> inference_pb2.GetModelResponse:
        """Returns the model of a name, or the default one."""
        service = self._service
        try:
            model = _describe(
                service.find_model(request.name or service.default_model.name, "name")
            )
        except ApiError as error:
            await abort(context, error)
        return inference_pb2.GetModelResponse(model=model)

    async def SetPriority(  # noqa: N802 (the contract's name)
        self, request: inference_pb2.SetPriorityRequest, context: Context
    ) -> inference_pb2.SetPriorityResponse:
        """Changes how urgent a request is; `Authentication` lets only admins call it."""
        try:
            number = await set_priority(self._service, request.request_id, request.priority)
        except ApiError as error:
            await abort(context, error)
        return inference_pb2.SetPriorityResponse(num_choices=number)


def add_servicer(servicer: InferenceServicer, server: grpc.aio.Server) -> None:
    """Adds a servicer to a server; requests of `Generate` reach it as they came.

    gRPC would make the objects of all of a message at once, before anybody is asked.
    """
    handlers: dict[str, Any] = {}
    for method in inference_pb2.DESCRIPTOR.services_by_name["Inference"].methods:
        call = getattr(servicer, method.name)
        write = GetMessageClass(method.output_type).SerializeToString
        if method.server_streaming:
            handlers[method.name] = grpc.unary_stream_rpc_method_handler(
                call, response_serializer=write
            )
            continue
        read = GetMessageClass(method.input_type).FromString
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(call, read, write)
    service = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])


def _describe(model: ServedModel) -> inference_pb2.Model:
    """Describes a model; raises SchedulerUnavailableError without a scheduler of it."""
    description = model.schedulers.description
    return inference_pb2.Model(
        name=model.name, max_model_len=description.max_model_len, vocab_size=description.vocab_size
    )
