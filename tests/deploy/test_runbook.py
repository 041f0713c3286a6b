"""The runbook has a section for each alert, and names only what there is."""

import re
from typing import Any

import pytest

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


def anchors() -> set[str]:
    """Returns the anchors of the headings, as they are made from their texts."""
    headings = re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_each_alert_leads_to_its_section(rule: dict[str, Any]) -> None:
    path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert (REPOSITORY / path).samefile(RUNBOOK)
    assert anchor == rule["alert"].lower()
    assert f"\n### {rule['alert']}\n" in TEXT


def test_there_is_no_section_of_an_alert_that_is_gone() -> None:
    part = TEXT[TEXT.index("\n## Alerts\n") : TEXT.index("\n## Symptoms\n")]
    assert re.findall(r"^### (.*)$", part, re.MULTILINE) == [rule["alert"] for rule in alerts()]


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert targets
    for target in targets:
        path, _, anchor = target.partition("#")
        if path:
            assert (RUNBOOK.parent / path).exists(), target
        else:
            assert anchor in anchors(), target


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
