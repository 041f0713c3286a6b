"""A request that moves from one scheduler to another, as JSON and back."""

import base64
from dataclasses import fields

from optimist_scheduler.core.requests.table import NO_SLOT, Request
from optimist_scheduler.journal.journal_line import (
    Json,
    column,
    read_column,
    read_sampling,
    read_window,
    write_sampling,
    write_window,
)

_KEPT = [field.name for field in fields(Request) if field.name not in ("slot", "block_hashes")]
"""What is known of a request that was evacuated; it has no slot, and no blocks."""


def write_moved(request: Request) -> Json:
    """Writes a request that was evacuated."""
    if request.slot != NO_SLOT:
        raise ValueError(f"{request.request_id} has a slot")
    values = {name: getattr(request, name) for name in _KEPT}
    return values | {
        "token_ids": column(request.token_ids),
        "stop_token_ids": sorted(request.stop_token_ids),
        "sampling": write_sampling(request.sampling),
        "window": None if request.window is None else write_window(request.window),
        "prediction_marks": base64.b64encode(request.prediction_marks).decode(),
    }


def read_moved(values: Json) -> Request:
    """Reads what `write_moved` wrote."""
    window = values["window"]
    return Request(
        **values
        | {
            "token_ids": read_column(values["token_ids"]),
            "stop_token_ids": frozenset(values["stop_token_ids"]),
            "sampling": read_sampling(values["sampling"]),
            "window": None if window is None else read_window(window),
            "num_accepted_by_source": tuple(values["num_accepted_by_source"]),
            "prediction_marks": base64.b64decode(values["prediction_marks"], validate=True),
        }
    )
