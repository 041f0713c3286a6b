"""The layer that sees every request of the REST API, for its span and the access log."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from optimist_gateway.observing.request_record import RequestObserver
from optimist_gateway.server.authentication import METRICS, PROBES

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
}
"""What gets a span, and what OpenTelemetry's conventions for generative AI call it."""
MAX_PATH_CHARACTERS = 200
_NOT_OBSERVED = PROBES | {METRICS}
_NO_ANSWER = 499
"""Status of a request whose client went away before there was one, as nginx has it."""


class Observation:
    """Wraps the application; add it last, so that refusals by other layers are seen too."""

    def __init__(self, app: ASGIApp, observer: RequestObserver) -> None:
        """Takes the application, and who is told of its requests."""
        self._app, self._observer = app, observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http" or scope["path"] in _NOT_OBSERVED:
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        record = self._observer.begin(
            OPERATIONS.get(path, "") if method == "POST" else "",
            {"http.request.method": method, "http.route": path, "url.path": path},
            _trace_parent(scope),
        )
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
            record.outcome = record.outcome or str(status)
            # As it was sent: without characters that could begin another line.
            shown = scope["raw_path"].decode("ascii", "backslashreplace")[:MAX_PATH_CHARACTERS]
            self._observer.end(
                record,
                f"{method} {shown}",
                {"http.response.status_code": status},
                failed=status >= 500 or record.outcome == "broken_stream",
            )


def _trace_parent(scope: Scope) -> str:
    values = [value for name, value in scope["headers"] if name == b"traceparent"]
    # More than one is none.
    return values[0].decode("latin-1") if len(values) == 1 else ""
