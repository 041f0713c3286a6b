"""Who asks, as far as that is known."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Client:
    """Who sent the request that the running task answers."""

    name: str = ""
    """Name of its key; empty if keys are not asked for."""
    is_admin: bool = False
    competes: bool = False
    """Whether there are other keys than its own."""


ANONYMOUS = Client()

current_client: ContextVar[Client] = ContextVar("current_client", default=ANONYMOUS)
"""Set where a request is authenticated, before it is handled."""
