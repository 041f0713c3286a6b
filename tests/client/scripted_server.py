"""A server of the gRPC API that does what a test says."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from optimist.v1 import inference_pb2, inference_pb2_grpc

MODEL = inference_pb2.Model(name="tiny", max_model_len=64, vocab_size=7)
Behaviour = Callable[[grpc.ServicerContext], Iterator[inference_pb2.GenerateResponse]]


def step(text: str, **fields: Any) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(step=inference_pb2.Step(text=text, **fields))


def summary(**fields: Any) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(summary=inference_pb2.Summary(**fields))


def answering(*responses: inference_pb2.GenerateResponse) -> Behaviour:
    """Sends responses."""
    return lambda _context: iter(responses)


GOOD = answering(step("a", finish_reason=inference_pb2.FINISH_REASON_STOP), summary())


def failing(
    code: grpc.StatusCode, *before: inference_pb2.GenerateResponse, **metadata: str
) -> Behaviour:
    """Sends responses and fails; `retry_after` is the metadata `retry-after`."""

    def behave(context: grpc.ServicerContext) -> Iterator[inference_pb2.GenerateResponse]:
        yield from before
        pairs = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
        context.set_trailing_metadata(pairs)
        context.abort(code, "as the test wants")

    return behave


def hanging(context: grpc.ServicerContext) -> Iterator[inference_pb2.GenerateResponse]:
    """Sends one response and goes on for ever."""
    yield step("a")
    ended = threading.Event()
    if not context.add_callback(ended.set):
        # The call is over already.
        ended.set()
    ended.wait()


class ScriptedServer(inference_pb2_grpc.InferenceServicer):
    """Each call does what the next of `behaviours` says, or the last one."""

    def __init__(self) -> None:
        self.behaviours: list[Behaviour] = []
        self.requests: list[inference_pb2.GenerateRequest] = []
        self.metadata: list[dict[str, Any]] = []
        self.priorities: list[tuple[str, int]] = []
        self.ended = threading.Event()
        self.address = ""

    def Generate(  # noqa: N802 (the contract's name)
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> Iterator[inference_pb2.GenerateResponse]:
        if not context.add_callback(self.ended.set):
            # The call is over already.
            self.ended.set()
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        behaviour = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        yield from behaviour(context)

    def ListModels(self, request: Any, context: Any) -> inference_pb2.ListModelsResponse:  # noqa: N802
        return inference_pb2.ListModelsResponse(models=[MODEL])

    def GetModel(self, request: Any, context: Any) -> inference_pb2.GetModelResponse:  # noqa: N802
        if request.name not in ("", MODEL.name):
            context.set_trailing_metadata((("optimist-error-code", "model_not_found"),))
            context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        return inference_pb2.GetModelResponse(model=MODEL)

    def SetPriority(self, request: Any, context: Any) -> inference_pb2.SetPriorityResponse:  # noqa: N802
        self.metadata.append(dict(context.invocation_metadata()))
        self.priorities.append((request.request_id, request.priority))
        if request.request_id != "gen-1":
            context.set_trailing_metadata((("optimist-error-field", "request_id"),))
            context.abort(grpc.StatusCode.NOT_FOUND, "no such request")
        return inference_pb2.SetPriorityResponse(num_choices=2)
