"""Chat messages as a chat template wants them."""

from collections.abc import Sequence
from dataclasses import dataclass

# Templates know `system`; `developer` is the newer name of the same role in the API.
_TEMPLATE_ROLES = {"developer": "system"}


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: str
    """`system`, `developer`, `user` or `assistant`."""
    content: str


def template_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Returns the messages as dictionaries with the roles that templates know."""
    return [
        {"role": _TEMPLATE_ROLES.get(message.role, message.role), "content": message.content}
        for message in messages
    ]
