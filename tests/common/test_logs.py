"""A log line says when, who and on behalf of which request, as text or as JSON."""

import json
import logging

from optimist_common.observing.logs import (
    MAX_MESSAGE_CHARACTERS,
    JsonFormatter,
    TextFormatter,
    log_context,
)


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord(
        "optimist_gateway.x", logging.WARNING, "x.py", 1, message, arguments, None
    )
    made.created = 1_700_000_000.25
    for name, value in extra.items():
        setattr(made, name, value)
    return made


def test_a_json_line_has_time_level_service_logger_and_message() -> None:
    line = JsonFormatter("gateway").format(record("lost %s", "the\nscheduler"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "service": "gateway",
        "logger": "optimist_gateway.x",
        "message": "lost the\nscheduler",
    }


def test_lines_name_the_request_that_they_are_about() -> None:
    token = log_context.set({"request_id": "r1", "trace_id": "t1"})
    try:
        made = record("GET /x", fields={"status": 200})
        line = json.loads(JsonFormatter("gateway").format(made))
        text = TextFormatter().format(made)
    finally:
        log_context.reset(token)
    assert (line["request_id"], line["trace_id"], line["status"]) == ("r1", "t1", 200)
    assert text.endswith("optimist_gateway.x: GET /x request_id=r1 trace_id=t1 status=200")
    assert "request_id" not in json.loads(JsonFormatter("gateway").format(record("later")))


def test_an_exception_and_a_long_message_stay_one_bounded_line() -> None:
    made = record("x" * (2 * MAX_MESSAGE_CHARACTERS))
    try:
        raise ValueError("why")
    except ValueError as error:
        made.exc_info = (ValueError, error, error.__traceback__)
    line = JsonFormatter("worker").format(made)
    assert "\n" not in line
    assert len(json.loads(line)["message"]) == MAX_MESSAGE_CHARACTERS
    assert json.loads(line)["exception"].endswith("ValueError: why")
