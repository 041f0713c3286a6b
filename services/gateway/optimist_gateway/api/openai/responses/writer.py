"""POST /v1/responses, whose answer is an object, or the typed events that build it up."""

import time
from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from optimist_gateway.api.openai.answer_parts import (
    Json,
    response_usage,
    segment_answer,
    speculation_answer,
    token_logprobs,
)
from optimist_gateway.api.openai.answering import STREAMED, Answering, event
from optimist_gateway.api.openai.bodies.base import LeftOut
from optimist_gateway.api.openai.bodies.structure import TextFormat
from optimist_gateway.api.openai.body_route import body_route
from optimist_gateway.api.openai.errors import error_body
from optimist_gateway.api.openai.responses.body import ReasoningOptions, ResponsesBody, TextOptions
from optimist_gateway.api.openai.responses.output import Event, ItemStatus, ResponseOutput
from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.output import FinishReason
from optimist_gateway.core.error import ApiError
from optimist_gateway.generation.generation import Generation, Service
from optimist_gateway.structure.tool_calls import CallDelta, MessageReader, ReasoningDelta

PATH = "/v1/responses"
_REPEATED = (
    *("instructions", "max_output_tokens", "max_tool_calls"),
    *("user", "safety_identifier", "prompt_cache_key"),
)
_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponseWriter:
    """An `AnswerWriter` for one response."""

    def __init__(self, generation: Generation, body: ResponsesBody) -> None:
        """Begins a response."""
        self._generation = generation
        self._reader: MessageReader | None = None
        tools = {tool.function.name: tool for tool in body.called}
        self._output = ResponseOutput(generation.request_id, tools)
        self._num_events = 0
        self._is_cut_off = False
        self._segments: list[Json] = []
        self._new_segments: list[Json] = []
        """Those that are in no event yet."""
        self._logprobs: list[Json] = []
        """Those of tokens whose text is still to come."""
        self._response: dict[str, Any] = {
            "id": generation.request_id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "model": body.model,
            "output": [],
            "usage": None,
            **_settings(body),
        }

    def whole(self, pieces: Sequence[tuple[int, Piece]]) -> dict[str, Any]:
        """See `AnswerWriter.whole`."""
        for _, piece in pieces:
            self._add(piece)
        self._finish()
        return self._response

    def piece(self, _index: int, piece: Piece) -> bytes:
        """See `AnswerWriter.piece`."""
        begun: list[Event] = []
        if not self._num_events:
            begun = [self._state("response.created"), self._state("response.in_progress")]
        return self._wire([*begun, *self._add(piece)])

    def finish(self) -> bytes:
        """See `AnswerWriter.finish`."""
        events = self._finish()
        return self._wire([*events, self._state(f"response.{self._response['status']}")])

    def fail(self, error: ApiError) -> bytes:
        """See `AnswerWriter.fail`; the output of the response is what there was until then."""
        if not self._num_events:
            return event(error_body(error))
        self._output.close("incomplete")
        code = _ERROR_CODES.get(error.status, "server_error")
        self._response |= {
            "status": "failed",
            "output": self._output.items,
            "error": {"code": code, "message": error.message},
        }
        fields = {"code": error.code, "message": error.message, "param": error.param}
        return self._wire([{"type": "error", **fields}, self._state("response.failed")])

    def _add(self, piece: Piece) -> list[Event]:
        """Adds a step; returns its events."""
        if piece.num_thinking_tokens:
            self._logprobs = []
        self._logprobs += token_logprobs((piece.logprobs or [])[piece.num_thinking_tokens :])
        self._new_segments += map(segment_answer, piece.segments or ())
        self._is_cut_off = piece.finish_reason is FinishReason.LENGTH
        events: list[Event] = []
        self._reader = self._reader or self._generation.message_reader()
        for delta in self._reader.push(piece.text, is_last=piece.finish_reason is not None):
            if isinstance(delta, CallDelta):
                events += self._output.add_call(delta.name, delta.arguments)
            elif isinstance(delta, ReasoningDelta):
                events += self._output.add_reasoning(delta.text)
            else:
                events += self._add_text(delta.text)
        if self._logprobs and self._output.has_open_message:
            events += self._add_text("")
        return self._with_provenance(events)

    def _add_text(self, text: str) -> list[Event]:
        logprobs, self._logprobs = self._logprobs, []
        return self._output.add_text(text, logprobs)

    def _finish(self) -> list[Event]:
        """Ends the output, and completes the response; returns the events of the former."""
        status: ItemStatus = "incomplete" if self._is_cut_off else "completed"
        events = self._with_provenance(self._output.finish(status))
        usage = response_usage(self._generation.usage())
        request = self._generation.request
        if request.include_speculation:
            usage["speculation"] = speculation_answer(self._generation.usage())
        self._response |= {
            "status": status,
            "output": self._output.items,
            "usage": usage,
            "completed_at": None if self._is_cut_off else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if self._is_cut_off else None,
        }
        if request.include_provenance:
            self._response["provenance"] = self._segments
        return events

    def _state(self, kind: str) -> Event:
        # The response changes after the event.
        return {"type": kind, "response": dict(self._response)}

    def _with_provenance(self, events: list[Event]) -> list[Event]:
        """Adds to the last event where text came from."""
        if events and self._new_segments:
            events[-1]["provenance"] = self._new_segments
            self._segments += self._new_segments
            self._new_segments = []
        return events

    def _wire(self, events: Sequence[Event]) -> bytes:
        """Numbers events; returns them as they go over the wire."""
        for number, one in enumerate(events, self._num_events):
            one["sequence_number"] = number
        self._num_events += len(events)
        return b"".join(
            b"event: %b\ndata: %b\n\n" % (one["type"].encode(), orjson.dumps(one)) for one in events
        )


def _settings(body: ResponsesBody) -> dict[str, Any]:
    """Returns the settings that a response repeats."""
    text = body.text or TextOptions()
    form = text.format or TextFormat(type="text")
    reasoning = body.reasoning or ReasoningOptions()
    repeated = body.model_dump(by_alias=True, include={*_REPEATED, "tool_choice", "tools"})
    tools = zip(body.tools or (), repeated["tools"] or (), strict=True)
    return {
        **repeated,
        "background": False,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "service_tier": "default",
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {
            "format": form.model_dump(by_alias=True, exclude_none=True),
            "verbosity": text.verbosity or "medium",
        },
        "tool_choice": repeated["tool_choice"] or "auto",
        "tools": [shown for tool, shown in tools if not isinstance(tool, LeftOut)],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
    }


def responses_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter(route_class=body_route(service))
    answering = Answering(service, PATH, "resp_")

    @router.post(PATH, responses=STREAMED)
    async def responses(request: Request, body: ResponsesBody) -> Response:
        """Answers a conversation with messages and calls of functions; keeps nothing of it."""

        def write(generation: Generation) -> ResponseWriter:
            return ResponseWriter(generation, body)

        return await answering.answer(request, body.request(), write)

    return router
