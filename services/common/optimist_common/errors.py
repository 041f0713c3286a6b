"""Errors that a person who starts a service can mend, and how they are shown."""

import sys
from collections.abc import Callable


class SetupError(Exception):
    """Says in one line what keeps a service from starting and what to do about it."""


def one_line(error: BaseException) -> str:
    """Returns the text of an error as one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def run_or_explain(program: str, start: Callable[[], None]) -> int:
    """Runs `start`; turns a SetupError into one line on standard error.

    Returns:
        The exit code: 0 after a clean end, 2 after a SetupError, 130 after Ctrl-C.
    """
    try:
        start()
    except SetupError as error:
        print(f"{program}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
