"""What is noted of a request while it is answered, for its span and its line in the access log."""

import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from optimist_common.observing.logs import log_context
from optimist_common.observing.tracing import Attributes, AttributeValue, Span
from optimist_gateway.core.answer.usage import Usage
from optimist_gateway.core.request import Request


@dataclass(slots=True)
class RequestRecord:
    """One request; never its texts, nor who asked."""

    span: Span | None = None
    request_id: str = ""
    outcome: str = ""
    """As in `optimist_gateway_requests`; empty until it is known."""
    error: str = ""
    """Code of the error that it was answered with."""
    usage: Usage | None = None
    reasons: list[str] = field(default_factory=list)
    """Why the choices ended."""
    first_token_seconds: float | None = None
    started: float = field(default_factory=time.perf_counter)

    @property
    def trace_parent(self) -> str:
        """What the scheduler is told; empty if there is no span."""
        return "" if self.span is None else self.span.trace_parent

    def begin(self, request_id: str, request: Request, client_name: str | None = None) -> None:
        """Notes which request it is; log lines are marked with its names from now on.

        Args:
            request_id: Its id.
            request: What it asks for.
            client_name: The X-Request-Id that the client sent.
        """
        self.request_id = request_id
        fields = {"request_id": request_id}
        if client_name is not None:
            fields["client_request_id"] = client_name
        if self.span is not None:
            fields["trace_id"] = self.span.trace_id
            self.span.set(_request_attributes(request_id, request))
        log_context.set(fields)

    def note_first_token(self) -> None:
        """Notes the first token of any choice; later ones are not noted."""
        if self.first_token_seconds is None:
            self.first_token_seconds = time.perf_counter() - self.started
            if self.span is not None:
                self.span.event("first token")

    def end(self, attributes: Attributes, *, failed: bool) -> None:
        """Ends the span, if there is one.

        Args:
            attributes: What is known only now.
            failed: Whether the server failed.
        """
        if self.span is not None:
            self.span.set({**self._answer_attributes(), **attributes})
            self.span.end(self.error or self.outcome if failed else "")

    def _answer_attributes(self) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {"optimist.outcome": self.outcome}
        if self.error:
            attributes["error.type"] = self.error
        if self.reasons:
            attributes["gen_ai.response.finish_reasons"] = self.reasons
        if self.first_token_seconds is not None:
            attributes["optimist.time_to_first_token"] = self.first_token_seconds
        usage = self.usage
        if usage is not None:
            attributes |= {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "optimist.usage.accepted_prediction_tokens": usage.accepted_prediction_tokens,
                "optimist.usage.rejected_prediction_tokens": usage.rejected_prediction_tokens or 0,
                "optimist.num_passes": usage.num_passes,
            }
        return attributes


_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def keep_record(record: RequestRecord) -> None:
    """Makes a record that of the request which this task answers."""
    _current.set(record)


def current_record() -> RequestRecord:
    """Returns the record of the request that is answered here; a new one if nobody keeps it."""
    return _current.get() or RequestRecord()


def _request_attributes(request_id: str, request: Request) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue | None] = {
        "gen_ai.response.id": request_id,
        "gen_ai.response.model": request.model,
        "gen_ai.request.stream": request.stream,
        "gen_ai.request.choice.count": request.n,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.sampling.temperature,
        "gen_ai.request.top_p": request.sampling.top_p,
        "gen_ai.request.seed": request.sampling.seed,
    }
    return {name: value for name, value in attributes.items() if value is not None}
