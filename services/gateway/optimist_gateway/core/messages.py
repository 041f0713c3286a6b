"""Chat messages as a chat template wants them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Templates know `system`; `developer` is the newer name of the same role in the API.
_TEMPLATE_ROLES = {"developer": "system"}


@dataclass(frozen=True)
class ToolCall:
    """A call that the assistant made earlier."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: str
    """`system`, `developer`, `user`, `assistant` or `tool`."""
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of an assistant's message."""
    tool_call_id: str | None = None
    """Of a tool's message: the call whose result it is."""
    name: str | None = None
    """Of a tool's message: the function, if the client says."""


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns the messages as dictionaries with the roles that templates know.

    Calls have OpenAI's shape, but their arguments are objects, as templates expect. Results name
    the function that was called, if it is known.
    """
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_template_message(message, names) for message in messages]


def _template_message(message: Message, names: Mapping[str, str]) -> dict[str, Any]:
    role = _TEMPLATE_ROLES.get(message.role, message.role)
    shown: dict[str, Any] = {"role": role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": dict(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
        name = message.name or names.get(message.tool_call_id)
        if name is not None:
            shown["name"] = name
    return shown
