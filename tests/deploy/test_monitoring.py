"""Dashboards, alerts and scrapes name only what is there."""

import json
import re
import shutil
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifest import REPOSITORY, SERVICES, alerts, documents, image_variables

DASHBOARDS = sorted((REPOSITORY / "deploy" / "grafana" / "dashboards").glob("*.json"))
PROMETHEUS = REPOSITORY / "deploy" / "prometheus"
PROVISIONING = REPOSITORY / "deploy" / "grafana" / "provisioning"
_NAME = re.compile(r"\b(?:optimist_(?:gateway|scheduler|worker|proposer)_\w+|vllm:\w+)")
_LABEL_MATCH = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")


def load_definitions() -> Any:
    path = REPOSITORY / "docs" / "generate_metrics.py"
    spec = spec_from_file_location("generate_metrics", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """The labels of each series that can be scraped."""
    groups = load_definitions().definitions().values()
    return {
        name: {*metric.labels, "le"} if name.endswith("_bucket") else set(metric.labels)
        for group in groups
        for metric in group
        for name in metric.series
    }


def panels(path: Path) -> list[dict[str, Any]]:
    dashboard = json.loads(path.read_text())
    found: list[dict[str, Any]] = dashboard["panels"]
    return found


def dashboard_expressions(path: Path) -> list[str]:
    return [target["expr"] for panel in panels(path) for target in panel.get("targets", [])]


def test_there_is_a_dashboard_for_serving_and_one_for_speculation() -> None:
    assert [path.stem for path in DASHBOARDS] == ["serving", "speculation"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_a_dashboard_names_metrics_and_labels_that_exist(
    path: Path, labels: dict[str, set[str]]
) -> None:
    expressions = dashboard_expressions(path)
    assert len(expressions) > 20
    for expression in expressions:
        require_known(expression, labels)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_names_metrics_that_exist_and_says_what_to_do(
    rule: dict[str, Any], labels: dict[str, set[str]]
) -> None:
    require_known(rule["expr"], labels)
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["action"]


def require_known(expression: str, labels: dict[str, set[str]]) -> None:
    names = _NAME.findall(expression)
    known_elsewhere = "process_resident_memory_bytes" in expression or "up{" in expression
    assert names or known_elsewhere, expression
    for name in names:
        assert name in labels, f"{name} in {expression}"
    matched = {*_LABEL_MATCH.findall(expression), *_grouped_by(expression)} - {"job", "instance"}
    own = set().union(*(labels[name] for name in names)) if names else set()
    assert matched <= own, expression
    assert expression.count("(") == expression.count(")"), expression


def _grouped_by(expression: str) -> set[str]:
    groups = re.findall(r"by \(([^)]*)\)", expression)
    return {label.strip() for group in groups for label in group.split(",")}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_panels_have_ids_of_their_own_and_do_not_overlap(path: Path) -> None:
    found = panels(path)
    assert len({panel["id"] for panel in found}) == len(found)
    taken: set[tuple[int, int]] = set()
    for panel in found:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + column, place["y"] + row)
            for column in range(place["w"])
            for row in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in found:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"], panel["title"]


def test_every_service_is_scraped_where_it_serves_its_metrics() -> None:
    (content,) = documents(PROMETHEUS / "prometheus.yml")
    found = {}
    for job in content["scrape_configs"]:
        (names,) = job["dns_sd_configs"]
        assert names["type"] == "A"
        found[job["job_name"]] = (names["names"], names["port"])
    (compose,) = documents(REPOSITORY / "docker-compose.yml")
    expected = {}
    for service in SERVICES:
        name = f"OPTIMIST_{service.upper()}_"
        variables = image_variables(service) | compose["services"][service].get("environment", {})
        port = variables.get(f"{name}METRICS_PORT", variables[f"{name}PORT"])
        expected[service] = ([service], int(port))
    assert found == expected
    assert content["rule_files"] == ["alerts.yml"]


def test_what_compose_mounts_for_monitoring_exists() -> None:
    (compose,) = documents(REPOSITORY / "docker-compose.yml")
    for name in ("prometheus", "grafana"):
        for volume in compose["services"][name]["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (REPOSITORY / source).is_dir(), volume
            else:
                assert source in compose["volumes"]


def test_grafana_finds_its_data_and_dashboards() -> None:
    (sources,) = documents(PROVISIONING / "datasources" / "prometheus.yml")
    (source,) = sources["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (boards,) = documents(PROVISIONING / "dashboards" / "optimist.yml")
    (provider,) = boards["providers"]
    (compose,) = documents(REPOSITORY / "docker-compose.yml")
    mounts = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounts


def promtool() -> str:
    """Returns the promtool that `make test` provides, or this machine's."""
    own = REPOSITORY / ".venv" / "bin" / "promtool"
    found = str(own) if own.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool: `make test` provides one")
    return found


def test_prometheus_understands_its_files() -> None:
    command = [promtool(), "check", "config", str(PROMETHEUS / "prometheus.yml")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    shutil.copy(PROMETHEUS / "alerts.yml", tmp_path)
    cases = shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    command = [promtool(), "test", "rules", str(cases)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
