"""What pieces of an answer add to a message, as OpenAI's API words it."""

import uuid
from collections.abc import Sequence
from typing import Any

from optimist_gateway.structure.tool_calls import CallDelta, ContentDelta, Delta


class MessageDelta:
    """Text and tool calls, together; a call that begins gets its id here."""

    def __init__(self, deltas: Sequence[Delta]) -> None:
        """Joins what belongs together."""
        self._content = "".join(one.text for one in deltas if isinstance(one, ContentDelta))
        self._calls: dict[int, dict[str, Any]] = {}
        for delta in deltas:
            if isinstance(delta, CallDelta):
                self._add(delta)

    def to_api(self) -> dict[str, Any]:
        """Returns the delta of a chunk; empty if there is nothing to say."""
        delta: dict[str, Any] = {"content": self._content} if self._content else {}
        if self._calls:
            delta["tool_calls"] = [{"index": index, **call} for index, call in self._calls.items()]
        return delta

    def to_message(self) -> dict[str, Any]:
        """Returns the message of a whole answer."""
        message: dict[str, Any] = {"role": "assistant", "content": self._content, "refusal": None}
        if self._calls:
            message |= {
                "content": self._content or None,
                "tool_calls": list(self._calls.values()),
            }
        return message

    def _add(self, delta: CallDelta) -> None:
        if delta.name is not None:
            self._calls[delta.index] = {
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": delta.name, "arguments": delta.arguments},
            }
            return
        call = self._calls.setdefault(delta.index, {"function": {"arguments": ""}})
        call["function"]["arguments"] += delta.arguments
