"""Log lines of every service, on standard error: as text, or as JSON for programs."""

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

MAX_MESSAGE_CHARACTERS = 16_384

log_context: ContextVar[dict[str, str]] = ContextVar("log_context", default={})  # noqa: B039
"""What lines that are written on behalf of a request say of it: `request_id` and `trace_id`. Set it
to another dictionary; never change one."""


def configure_logging(level: str, log_format: str = "text", service: str = "") -> None:
    """Sends log records of `level` and above to standard error, a line each, as text or as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(service) if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Returns what a record says besides its message: its request, and `extra={"fields": ...}`."""
    fields: dict[str, Any] = dict(log_context.get())
    for name in ("request_id", "trace_id"):
        if value := getattr(record, name, None):
            fields[name] = value
    return fields | getattr(record, "fields", {})


class TextFormatter(logging.Formatter):
    """Time, level, logger, message, and whatever else is known as `name=value`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Returns the line without a traceback."""
        fields = [f"{name}={value}" for name, value in fields_of(record).items()]
        return " ".join([super().formatMessage(record), *fields])


class JsonFormatter(logging.Formatter):
    """An object for each record: time, level, service, logger, message, request_id, trace_id."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage()[:MAX_MESSAGE_CHARACTERS],
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-MAX_MESSAGE_CHARACTERS:]
        return json.dumps(line, default=str)
