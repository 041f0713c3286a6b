"""A span for each generation request, and a line in the access log for each request."""

import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from optimist_common.tracing import Tracer
from optimist_gateway.request_record import RequestRecord, keep_record

logger = logging.getLogger("optimist_gateway.access")

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
}
"""What gets a span, and what OpenTelemetry's conventions for generative AI call it."""
_NOT_LOGGED = frozenset({"/health", "/live", "/ready", "/metrics"})
MAX_PATH_CHARACTERS = 200
_NO_ANSWER = 499
"""Status of a request whose client went away before there was one, as nginx has it."""


class Observation:
    """Wraps the application; add it last, so that refusals by other layers are seen too."""

    def __init__(self, app: ASGIApp, tracer: Tracer, model_name: str, *, access_log: bool) -> None:
        """Takes the application.

        Args:
            app: What answers.
            tracer: Starts the spans.
            model_name: The model's name in the API.
            access_log: Whether requests are logged.
        """
        self._app, self._tracer = app, tracer
        self._model_name, self._access_log = model_name, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http" or scope["path"] in _NOT_LOGGED:
            await self._app(scope, receive, send)
            return
        record = self._start(scope)
        keep_record(record)
        status = _NO_ANSWER

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        except Exception:
            status = 500
            raise
        finally:
            record.end(status)
            if self._access_log:
                path = scope["raw_path"].decode("ascii", "backslashreplace")[:MAX_PATH_CHARACTERS]
                logger.info("%s %s", scope["method"], path, extra=_fields(record, status))

    def _start(self, scope: Scope) -> RequestRecord:
        operation = OPERATIONS.get(scope["path"])
        if operation is None or scope["method"] != "POST":
            return RequestRecord()
        span = self._tracer.start(
            f"{operation} {self._model_name}",
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "optimist",
                "gen_ai.request.model": self._model_name,
                "http.request.method": scope["method"],
                "http.route": scope["path"],
                "url.path": scope["path"],
            },
            trace_parent=_trace_parent(scope),
            kind="server",
        )
        return RequestRecord(span)


def _trace_parent(scope: Scope) -> str:
    values = [value for name, value in scope["headers"] if name == b"traceparent"]
    # More than one is none.
    return values[0].decode("latin-1") if len(values) == 1 else ""


def _fields(record: RequestRecord, status: int) -> dict[str, Any]:
    """Returns what the access log says; never the query, a header or a text."""
    fields: dict[str, Any] = {
        "status": status,
        "outcome": record.outcome,
        "seconds": round(time.perf_counter() - record.started, 4),
    }
    if record.error:
        fields["error"] = record.error
    if record.first_token_seconds is not None:
        fields["first_token_seconds"] = round(record.first_token_seconds, 4)
    if record.usage is not None:
        fields |= {
            "prompt_tokens": record.usage.prompt_tokens,
            "completion_tokens": record.usage.completion_tokens,
            "accepted_prediction_tokens": record.usage.accepted_prediction_tokens,
        }
    return {"fields": fields}
