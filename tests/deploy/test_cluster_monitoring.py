"""Monitors, rules, dashboards and autoscalers of the cluster name what is there."""

import json
import re
from typing import Any

import pytest

from tests.deploy.installation import KUBERNETES, STACKS, Installation, render
from tests.deploy.manifest import REPOSITORY, SERVICES, documents, known_metrics

_NAME = re.compile(r"\boptimist_\w+")


@pytest.fixture(scope="module")
def keda() -> Installation:
    return render("base", STACKS["keda"])


@pytest.fixture(scope="module")
def hpa() -> Installation:
    return render("base", STACKS["hpa"])


def test_the_rules_are_the_alerts_that_prometheus_has_elsewhere(keda: Installation) -> None:
    (rule,) = keda.kind("PrometheusRule").values()
    (alerts,) = documents(REPOSITORY / "deploy" / "prometheus" / "alerts.yml")
    assert rule["spec"] == alerts


def test_the_dashboards_are_those_of_compose(keda: Installation) -> None:
    found = keda.kind("ConfigMap")["optimist-dashboards"]
    paths = (REPOSITORY / "deploy" / "grafana" / "dashboards").glob("*.json")
    assert {name: json.loads(text) for name, text in found["data"].items()} == {
        path.name: json.loads(path.read_text()) for path in paths
    }
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_each_service_is_scraped_by_the_name_that_alerts_and_dashboards_know(
    keda: Installation,
) -> None:
    jobs = {}
    for monitor in keda.kind("ServiceMonitor", "PodMonitor").values():
        spec = monitor["spec"]
        (endpoint,) = spec.get("endpoints", spec.get("podMetricsEndpoints"))
        assert endpoint["path"] == "/metrics"
        (relabeling,) = endpoint["relabelings"]
        assert relabeling["targetLabel"] == "job"
        if monitor["kind"] == "PodMonitor":
            assert [pod.role for pod in keda.selected(spec["selector"])] == [
                relabeling["replacement"]
            ]
            (pod,) = keda.selected(spec["selector"])
            assert endpoint["port"] in pod.ports
        else:
            ports = keda.kind("Service")["optimist-gateway"]["spec"]["ports"]
            assert endpoint["port"] in [port["name"] for port in ports]
        jobs[relabeling["replacement"]] = endpoint
    (content,) = documents(REPOSITORY / "deploy" / "prometheus" / "prometheus.yml")
    assert set(jobs) == {job["job_name"] for job in content["scrape_configs"]} == set(SERVICES)
    # The gateway has keys, and its metrics with it.
    assert jobs["gateway"]["authorization"]["credentials"]["name"] == "optimist-keys"


def test_the_service_that_is_monitored_has_the_label_that_the_monitor_looks_for(
    keda: Installation,
) -> None:
    (monitor,) = keda.kind("ServiceMonitor").values()
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    found = [
        name
        for name, service in keda.kind("Service").items()
        if wanted <= service["metadata"].get("labels", {}).items()
    ]
    assert found == ["optimist-gateway"]


def check_scaled(installation: Installation, scaler: dict[str, Any]) -> None:
    target = scaler["spec"]["scaleTargetRef"]
    deployment = installation.kind(target["kind"])[target["name"]]
    # Otherwise every `kubectl apply` would set the number back.
    assert "replicas" not in deployment["spec"]


def test_keda_scales_what_exists_by_metrics_that_exist(keda: Installation) -> None:
    scalers = keda.kind("ScaledObject")
    assert set(scalers) == {"optimist-gateway", "optimist-proposer"}
    assert not keda.kind("HorizontalPodAutoscaler")
    for scaler in scalers.values():
        check_scaled(keda, scaler)
        spec = scaler["spec"]
        assert 2 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"]
        assert spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
        for trigger in spec["triggers"]:
            names = set(_NAME.findall(trigger["metadata"]["query"]))
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
    (values,) = documents(KUBERNETES / "components" / "autoscaling-hpa" / "adapter-rules.yaml")
    served = {rule["seriesQuery"].split("{")[0] for rule in values["rules"]["custom"]}
    assert served == asked


def test_both_ways_into_the_world_lead_to_the_gateway(
    keda: Installation, hpa: Installation
) -> None:
    services = keda.kind("Service")
    (route,) = keda.kind("HTTPRoute").values()
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    ports = services[backend["name"]]["spec"]["ports"]
    assert backend["port"] in [port["port"] for port in ports]
    (ingress,) = hpa.kind("Ingress").values()
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
    service = path["backend"]["service"]
    assert service["name"] == backend["name"] == "optimist-gateway"
    assert service["port"]["name"] in [port["name"] for port in ports]
