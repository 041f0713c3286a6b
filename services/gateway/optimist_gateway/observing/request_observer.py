"""Begins and ends what is noted of each request: its span, and its line in the access log."""

import logging
import time
from typing import Any

from optimist_common.observing.tracing import OFF, Attributes, Tracer
from optimist_gateway.observing.request_record import RequestRecord, keep_record

logger = logging.getLogger("optimist_gateway.access")


class RequestObserver:
    """What all fronts of the API tell of their requests."""

    def __init__(
        self, model_name: str = "", tracer: Tracer = OFF, *, access_log: bool = False
    ) -> None:
        """Takes what is told where.

        Args:
            model_name: The model's name in the API.
            tracer: Starts the spans.
            access_log: Whether requests are logged.
        """
        self._model_name, self._tracer, self._access_log = model_name, tracer, access_log

    @property
    def is_on(self) -> bool:
        """Whether anything is told."""
        return self._access_log or self._tracer.is_on

    def begin(self, operation: str, attributes: Attributes, trace_parent: str) -> RequestRecord:
        """Returns the record of the request that this task answers, with a span if it is traced.

        Args:
            operation: What OpenTelemetry's conventions for generative AI call it, such as `chat`;
                empty for a request that generates nothing and has no span.
            attributes: What the front knows of it.
            trace_parent: W3C traceparent that came with the request, if one did.
        """
        span = None
        if operation:
            generating = {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "optimist",
                "gen_ai.request.model": self._model_name,
            }
            span = self._tracer.start(
                f"{operation} {self._model_name}",
                {**generating, **attributes},
                trace_parent=trace_parent,
                kind="server",
            )
        record = RequestRecord(span)
        keep_record(record)
        return record

    def end(
        self, record: RequestRecord, name: str, attributes: Attributes, *, failed: bool
    ) -> None:
        """Ends the span and writes the line.

        Args:
            record: The request, with its outcome.
            name: What was asked for, such as `POST /v1/completions`.
            attributes: What the front knows only now.
            failed: Whether the server failed.
        """
        record.end(attributes, failed=failed)
        if self._access_log:
            logger.info("%s", name, extra={"fields": _fields(record)})


def _fields(record: RequestRecord) -> dict[str, Any]:
    """Returns what the access log says; never the query, an address or a text."""
    fields: dict[str, Any] = {
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
    return fields
