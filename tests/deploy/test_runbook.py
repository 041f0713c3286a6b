"""The runbook has a section for each alert, and names only what there is."""

import re

from tests.deploy.manifest import REPOSITORY, SERVICES, alerts, known_metrics, settings_class

RUNBOOK = REPOSITORY / "docs" / "runbook.md"
TEXT = RUNBOOK.read_text()
# Words with underscores that are no settings: of the API, of logs, of metrics' labels.
_OTHERS = {
    "accepted_prediction_tokens",
    "broken_stream",
    "cache_salt",
    "draft_model",
    "process_resident_memory_bytes",
    "rate_limit_exceeded",
    "request_id",
    "response_format",
    "runbook_url",
    "trace_id",
}


def test_each_alert_leads_to_its_section_and_there_is_no_other() -> None:
    for rule in alerts():
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (REPOSITORY / path).samefile(RUNBOOK)
        assert anchor == rule["alert"].lower()
    part = TEXT[TEXT.index("\n## Alerts\n") : TEXT.index("\n## Symptoms\n")]
    assert re.findall(r"^### (.*)$", part, re.MULTILINE) == [rule["alert"] for rule in alerts()]


def test_every_metric_exists() -> None:
    known = known_metrics() | {f"optimist_{service}" for service in SERVICES}
    named = set(re.findall(r"\boptimist_\w+", TEXT)) - {"optimist_common"}
    assert len(named) > 30
    assert named <= known, named - known


def test_every_setting_exists() -> None:
    fields = {name for service in SERVICES for name in settings_class(service).model_fields}
    errors = REPOSITORY / "services" / "gateway" / "optimist_gateway"
    codes = set(
        re.findall(
            r'(?:code=|SHUTTING_DOWN = )"(\w+)"',
            "".join(path.read_text() for path in errors.rglob("*.py")),
        )
    )
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)(?:=\w+)?`", TEXT))
    words |= {flag.replace("-", "_") for flag in re.findall(r"`--([a-z-]+)[ `]", TEXT)}
    words = {word for word in words if not word.startswith("optimist_")}
    assert len(words) > 30
    assert words <= fields | codes | _OTHERS | {"service"}, words - fields - codes - _OTHERS
