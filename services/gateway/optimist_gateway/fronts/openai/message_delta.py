"""What pieces of an answer add to a message, as OpenAI's API has it."""

import uuid
from collections.abc import Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.structure.tool_calls import CallDelta, ContentDelta, Delta, ToolCallReader


class CalledFunctionAnswer(TypedDict):
    """A function and the JSON text of its arguments."""

    name: str
    arguments: str


class ToolCallAnswer(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunctionAnswer


class MessageAnswer(TypedDict):
    """The message of the model."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[ToolCallAnswer]]


def new_call_id() -> str:
    """Returns a name for a call, by which its result will refer to it."""
    return f"call_{uuid.uuid4().hex[:24]}"


def read_deltas(reader: ToolCallReader | None, pieces: Sequence[Piece]) -> list[Delta]:
    """Returns what pieces of a choice add to its message.

    Args:
        reader: Separates tool calls from text; None if there are none.
        pieces: The next ones.
    """
    text = "".join(piece.text for piece in pieces)
    if reader is None:
        return [ContentDelta(text)] if text else []
    deltas = reader.push(text)
    if pieces[-1].finish_reason is not None:
        deltas += reader.finish()
    return deltas


class MessageDelta:
    """Text and tool calls, together; a call that begins gets its id here."""

    def __init__(self, deltas: Sequence[Delta]) -> None:
        """Joins what belongs together."""
        self._content = "".join(one.text for one in deltas if isinstance(one, ContentDelta))
        self._calls: dict[int, Any] = {}
        for delta in deltas:
            if isinstance(delta, CallDelta):
                self._add(delta)

    def to_api(self) -> dict[str, Any]:
        """Returns the delta of a chunk; empty if there is nothing to say."""
        delta: dict[str, Any] = {"content": self._content} if self._content else {}
        if self._calls:
            delta["tool_calls"] = [{"index": index, **call} for index, call in self._calls.items()]
        return delta

    def to_message(self) -> MessageAnswer:
        """Returns the message of a whole answer."""
        message: MessageAnswer = {"role": "assistant", "content": self._content, "refusal": None}
        if self._calls:
            message["content"] = self._content or None
            message["tool_calls"] = list(self._calls.values())
        return message

    def _add(self, delta: CallDelta) -> None:
        if delta.name is not None:
            self._calls[delta.index] = {
                "id": new_call_id(),
                "type": "function",
                "function": {"name": delta.name, "arguments": delta.arguments},
            }
            return
        call = self._calls.setdefault(delta.index, {"function": {"arguments": ""}})
        call["function"]["arguments"] += delta.arguments
