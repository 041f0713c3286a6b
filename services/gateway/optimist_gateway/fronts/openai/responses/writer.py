"""Words a response of `/v1/responses`: the object, and the typed events that build it up."""

from collections.abc import Mapping, Sequence
from typing import Any

from optimist_gateway.core.error import ApiError
from optimist_gateway.fronts.openai.responses.body import ResponsesBody
from optimist_gateway.fronts.openai.responses.output import Event, ResponseOutput

_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponseWriter:
    """One response; its methods are called in the order in which they stand here.

    Each returns the events of a stream; whoever answers as a whole takes `response` at the end.
    """

    def __init__(self, response_id: str, body: ResponsesBody, model: str, created_at: int) -> None:
        """Begins a response.

        Args:
            response_id: Its name, which begins with `resp_`.
            body: The request.
            model: Name of the model.
            created_at: Seconds since 1970.
        """
        self._body = body
        self._output = ResponseOutput(response_id)
        self._num_events = 0
        self._reason: str | None = None
        self._segments: list[dict[str, Any]] = []
        self._untold: list[dict[str, Any]] = []
        """Segments that no event has told of."""
        self._logprobs: list[dict[str, Any]] = []
        """Those of tokens whose text is still to come."""
        self.response: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": created_at,
            "status": "in_progress",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "usage": None,
            **_settings(body),
        }

    def begin(self) -> list[Event]:
        """Returns what comes before all text."""
        kinds = ("response.created", "response.in_progress")
        return self._numbered([self._told_now(kind) for kind in kinds])

    def add(
        self, choice: Mapping[str, Any], segments: Sequence[dict[str, Any]] = ()
    ) -> list[Event]:
        """Adds what a chunk of a chat completion says.

        Args:
            choice: The chunk's choice: `delta`, `logprobs` and `finish_reason`.
            segments: Where its text came from, if that is wanted.
        """
        delta = choice["delta"]
        self._logprobs += (choice.get("logprobs") or {}).get("content") or []
        events: list[Event] = []
        text = delta.get("content") or ""
        if text or (self._logprobs and self._output.has_open_message):
            events += self._output.add_text(text, self._logprobs)
            self._logprobs = []
        for call in delta.get("tool_calls") or []:
            function = call.get("function") or {}
            events += self._output.add_call(
                call["index"],
                call_id=call.get("id") or "",
                name=function.get("name") or "",
                arguments=function.get("arguments") or "",
            )
        self._reason = choice.get("finish_reason") or self._reason
        self._untold += segments
        return self._told(events)

    def finish(self, usage: Mapping[str, Any], completed_at: int) -> list[Event]:
        """Ends the response.

        Args:
            usage: The account, as chat completions have it.
            completed_at: Seconds since 1970.
        """
        is_whole = self._reason != "length"
        status = "completed" if is_whole else "incomplete"
        events = self._told(self._output.finish("completed" if is_whole else "incomplete"))
        self.response |= {
            "status": status,
            "output": self._output.items,
            "usage": _usage(usage),
            "completed_at": completed_at if is_whole else None,
            "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
        }
        if self._body.include_provenance:
            self.response["provenance"] = self._segments
        return events + self._numbered([self._told_now(f"response.{status}")])

    def fail(self, error: ApiError) -> list[Event]:
        """Ends a response that broke off; its output is what there was until then."""
        code = _ERROR_CODES.get(error.status, "server_error")
        self._output.close("incomplete")
        self.response |= {
            "status": "failed",
            "output": self._output.items,
            "error": {"code": code, "message": error.message},
        }
        told = {"code": error.code, "message": error.message, "param": error.param}
        return self._numbered([{"type": "error", **told}, self._told_now("response.failed")])

    def _told_now(self, kind: str) -> Event:
        # The response changes behind the event.
        return {"type": kind, "response": dict(self.response)}

    def _told(self, events: list[Event]) -> list[Event]:
        """Numbers events; the last one tells where text came from."""
        if events and self._untold:
            events[-1]["provenance"] = self._untold
            self._segments += self._untold
            self._untold = []
        return self._numbered(events)

    def _numbered(self, events: list[Event]) -> list[Event]:
        for number, event in enumerate(events, self._num_events):
            event["sequence_number"] = number
        self._num_events += len(events)
        return events


def _settings(body: ResponsesBody) -> dict[str, Any]:
    """Returns the settings that a response repeats."""
    form = body.text.format if body.text is not None else None
    choice = body.tool_choice
    if choice is None:
        choice = "auto"
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {
            "format": {"type": "text"} if form is None else form.model_dump(by_alias=True),
            "verbosity": "medium",
        },
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [tool.model_dump() for tool in body.tools or []],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the account of a chat completion in the words of responses."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    details = usage["completion_tokens_details"]
    words = {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {
            name: count for name, count in details.items() if name != "audio_tokens"
        },
        "total_tokens": usage["total_tokens"],
    }
    if "speculation" in usage:
        words["speculation"] = usage["speculation"]
    return words
