"""Fields of commands as plain values; an error names its field."""

from collections.abc import Sequence

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import from_bytes
from optimist_common.scheduler_service.pause_mode import PauseMode

MAX_NAMES = 4
MAX_NAME_LENGTH = 256


PAUSE_MODES = {scheduler_pb2.PauseMode.Value(f"PAUSE_MODE_{mode.name}"): mode for mode in PauseMode}


class MalformedError(ValueError):
    """A message that breaks the contract; the text names the field."""


def read_integers(name: str, data: bytes) -> Sequence[int]:
    """Reads a column without a copy: what is only passed on may be long."""
    try:
        return from_bytes(data).data
    except ValueError:
        raise MalformedError(f"{name}: {len(data)} bytes are no int32 column") from None


def read_names(add: scheduler_pb2.Add) -> tuple[str, ...]:
    """Reads the names of the client's request; raises MalformedError if there are too many."""
    names = tuple(add.names)
    if len(names) > MAX_NAMES:
        raise MalformedError(f"names: must be at most {MAX_NAMES}, not {len(names)}")
    if any(not 0 < len(name) <= MAX_NAME_LENGTH for name in names):
        raise MalformedError(f"names: each must have 1 to {MAX_NAME_LENGTH} characters")
    return names


def read_pause_mode(pause: scheduler_pb2.Pause) -> PauseMode:
    """Reads the mode; raises MalformedError if there is none."""
    mode = PAUSE_MODES.get(pause.mode)
    if mode is None:
        raise MalformedError(f"pause.mode: must be KEEP, WAIT or ABORT, not {pause.mode}")
    return mode
