"""Dashboards, alerts, scrapes and autoscalers name only what is there."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.command import promtool, run
from tests.deploy.installation import (
    ENGINE_STACKS,
    ENGINES,
    STACKS,
    Installation,
    matches,
    render,
)
from tests.deploy.manifest import (
    REPOSITORY,
    SERVICES,
    alerts,
    compose_services,
    document,
    image_variables,
    known_metrics,
    known_series,
)

DASHBOARDS = sorted((REPOSITORY / "deploy" / "grafana" / "dashboards").glob("*.json"))
PROMETHEUS = REPOSITORY / "deploy" / "prometheus"
LABELS = known_series()
_NAME = re.compile(r"\b(?:optimist_(?:build|gateway|scheduler|worker|proposer)_\w+|vllm:\w+)")
_SELECTOR = re.compile(r"\b(optimist_\w+|process_resident_memory_bytes)(\{[^}]*\})?")
_LABEL_MATCH = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")


def panels(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
    return found


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_a_dashboard_names_what_exists_and_asks_for_what_it_is_filtered_by(path: Path) -> None:
    targets = [target for panel in panels(path) for target in panel.get("targets", [])]
    assert len(targets) > 20
    for target in targets:
        require_known(target["expr"])
        for name, matchers in _SELECTOR.findall(target["expr"]):
            filters = {"namespace", "instance"} | (LABELS.get(name, set()) & {"model"})
            assert filters <= set(re.findall(r'(\w+)=~"\$\1"', matchers)), target["expr"]
    source, *variables = json.loads(path.read_text())["templating"]["list"]
    assert source["type"] == "datasource"
    assert [one["name"] for one in variables] == ["namespace", "model", "instance"]
    for one in variables:
        query = one["query"]["query"]
        assert query.startswith("label_values(")
        require_known(query)
        # Installations without namespaces are all of them, too.
        assert (one["includeAll"], one["allValue"]) == (True, ".*")


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_names_metrics_that_exist_and_says_what_to_do(rule: dict[str, Any]) -> None:
    require_known(rule["expr"])
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["action"]
    # One Prometheus may watch several installations.
    for labels in re.findall(r"\b(?:sum|group)\b(?: by \(([^)]*)\))?", rule["expr"]):
        of_job = '"job", "optimist-' in rule["expr"]
        assert {"namespace"} | ({"job"} if not of_job else set()) <= set(labels.split(", "))


def require_known(expression: str) -> None:
    names = _NAME.findall(expression)
    known_elsewhere = "process_resident_memory_bytes" in expression or "up{" in expression
    assert names or known_elsewhere, expression
    assert set(names) <= set(LABELS), expression
    grouped_by = ",".join(re.findall(r"by \(([^)]*)\)", expression)).split(",")
    matched = {*_LABEL_MATCH.findall(expression), *map(str.strip, grouped_by)}
    of_targets = {"", "namespace", "job", "instance"}
    assert matched - of_targets <= set().union(*(LABELS[name] for name in names)), expression


def test_every_service_is_scraped_where_it_serves_its_metrics() -> None:
    content = document("deploy/prometheus/prometheus.yml")
    found = {}
    for job in content["scrape_configs"]:
        (names,) = job["dns_sd_configs"]
        found[job["job_name"]] = (names["names"], names["type"], names["port"])
    expected = {}
    for service in SERVICES:
        name = f"OPTIMIST_{service.upper()}_"
        environment = compose_services()[service].get("environment", {})
        variables = image_variables(service) | environment
        port = variables.get(f"{name}METRICS_PORT", variables[f"{name}PORT"])
        expected[f"optimist-{service}"] = ([service], "A", int(port))
    assert found == expected
    assert content["rule_files"] == ["alerts.yml"]


def test_prometheus_understands_its_files_and_every_panel(tmp_path: Path) -> None:
    run(promtool(), "check", "config", PROMETHEUS / "prometheus.yml")
    expressions = [
        re.sub(
            r"\$(namespace|model|instance)", ".*", target["expr"].replace("$__rate_interval", "1m")
        )
        for path in DASHBOARDS
        for panel in panels(path)
        for target in panel.get("targets", [])
    ]
    rules = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(expressions)]
    rules_file = tmp_path / "rules.yml"
    rules_file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    run(promtool(), "check", "rules", rules_file)


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    shutil.copy(PROMETHEUS / "alerts.yml", tmp_path)
    cases = shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    run(promtool(), "test", "rules", cases)


@pytest.fixture(scope="module")
def keda() -> Installation:
    return render("base", STACKS["keda"])


@pytest.fixture(scope="module")
def hpa() -> Installation:
    return render("base", STACKS["hpa"])


def test_each_service_is_scraped_by_the_name_that_alerts_and_dashboards_know(
    keda: Installation,
) -> None:
    found = keda.kind("ConfigMap")["optimist-dashboards"]
    assert {name: json.loads(text) for name, text in found["data"].items()} == {
        path.name: json.loads(path.read_text()) for path in DASHBOARDS
    }
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    jobs = {}
    for monitor in keda.kind("ServiceMonitor", "PodMonitor").values():
        selector = monitor["spec"]["selector"]
        (endpoint,) = monitor["spec"].get("endpoints", monitor["spec"].get("podMetricsEndpoints"))
        assert endpoint["path"] == "/metrics"
        (relabeling,) = endpoint["relabelings"]
        assert relabeling["targetLabel"] == "job"
        if monitor["kind"] == "PodMonitor":
            (pod,) = keda.selected(selector)
            name, ports = f"optimist-{pod.role}", set(pod.ports)
        else:
            services = keda.kind("Service").values()
            (service,) = (
                one for one in services if matches(selector, one["metadata"].get("labels", {}))
            )
            ports = {port["name"] for port in service["spec"]["ports"]}
            name = service["metadata"]["name"]
        assert name == relabeling["replacement"]
        assert endpoint["port"] in ports
        jobs[relabeling["replacement"]] = endpoint
    content = document("deploy/prometheus/prometheus.yml")
    assert set(jobs) == {job["job_name"] for job in content["scrape_configs"]}
    assert set(jobs) == {f"optimist-{service}" for service in SERVICES}
    # The gateway has keys, and its metrics with it.
    assert jobs["optimist-gateway"]["authorization"]["credentials"]["name"] == "optimist-keys"


def check_scaled(installation: Installation, scaler: dict[str, Any]) -> None:
    target = scaler["spec"]["scaleTargetRef"]
    deployment = installation.kind(target["kind"])[target["name"]]
    # Otherwise every `kubectl apply` would set the number back.
    assert "replicas" not in deployment["spec"]


@pytest.mark.parametrize(
    ("overlay", "stack", "second"),
    [("base", STACKS["keda"], "proposer"), (ENGINES, ENGINE_STACKS["keda"], "engine")],
    ids=["base", "engines"],
)
def test_keda_scales_what_exists_by_metrics_that_exist(
    overlay: str, stack: tuple[str, ...], second: str
) -> None:
    installation = render(overlay, stack)
    scalers = installation.kind("ScaledObject")
    assert set(scalers) == {"optimist-gateway", f"optimist-{second}"}
    assert not installation.kind("HorizontalPodAutoscaler")
    for scaler in scalers.values():
        check_scaled(installation, scaler)
        spec = scaler["spec"]
        assert 2 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"]
        assert spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
        for trigger in spec["triggers"]:
            names = set(re.findall(r"\boptimist_\w+", trigger["metadata"]["query"]))
            assert names
            assert names <= known_metrics()


def test_the_cluster_scales_what_exists_by_what_its_pods_do(hpa: Installation) -> None:
    scalers = hpa.kind("HorizontalPodAutoscaler")
    assert set(scalers) == {"optimist-gateway", "optimist-proposer"}
    assert not hpa.kind("ScaledObject")
    asked = set()
    for name, scaler in scalers.items():
        check_scaled(hpa, scaler)
        assert 2 <= scaler["spec"]["minReplicas"] < scaler["spec"]["maxReplicas"]
        (metric,) = scaler["spec"]["metrics"]
        if metric["type"] == "Resource":
            # Of its utilisation there is a share only where something is asked for.
            (container,) = hpa.kind("Deployment")[name]["spec"]["template"]["spec"]["containers"]
            assert container["resources"]["requests"][metric["resource"]["name"]]
        else:
            series = metric["pods"]["metric"]["name"]
            assert series.startswith(name.replace("-", "_") + "_")
            asked.add(series)
    assert asked <= known_metrics()
    values = document("deploy/k8s/components/autoscaling-hpa/adapter-rules.yaml")
    served = {rule["seriesQuery"].split("{")[0] for rule in values["rules"]["custom"]}
    assert served == asked
