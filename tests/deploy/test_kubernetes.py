import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from optimist_common.server import GRACE_SECONDS
from tests.deploy.manifest import (
    REPOSITORY,
    SERVICES,
    documents,
    image_variables,
    settings_class,
    settings_values,
)

BASE = REPOSITORY / "deploy" / "k8s" / "base"
RESOURCES = sorted(path for path in BASE.glob("*.yaml") if path.name != "kustomization.yaml")


def pick(service: str, kind: str) -> dict[str, Any]:
    (found,) = (one for one in documents(BASE / f"{service}.yaml") if one["kind"] == kind)
    return found


def pod(service: str) -> dict[str, Any]:
    spec: dict[str, Any] = pick(service, "Deployment")["spec"]["template"]["spec"]
    return spec


def container(service: str) -> dict[str, Any]:
    (found,) = pod(service)["containers"]
    assert isinstance(found, dict)
    return found


def variables(service: str) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container(service).get("env", [])}


def listened_port(service: str) -> int:
    if service == "redis":
        return 6379
    return int(image_variables(service)[f"OPTIMIST_{service.upper()}_PORT"])


def validate(*paths: Path) -> None:
    check = Path(sys.executable).with_name("kubernetes-validate")
    command = [str(check), "--strict", *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_document_follows_the_kubernetes_schemas() -> None:
    validate(*RESOURCES)


def test_every_file_is_part_of_the_base() -> None:
    (kustomization,) = documents(BASE / "kustomization.yaml")
    assert sorted(kustomization["resources"]) == [path.name for path in RESOURCES]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_renders_the_base(tmp_path: Path) -> None:
    command = ["kubectl", "kustomize", str(BASE)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(result.stdout)
    validate(rendered)
    assert len(documents(rendered)) == sum(len(documents(path)) for path in RESOURCES)


@pytest.mark.parametrize("service", SERVICES)
def test_gives_each_service_settings_that_it_accepts(service: str) -> None:
    values = settings_values(service, image_variables(service) | variables(service))
    settings_class(service)(**values)


@pytest.mark.parametrize("service", SERVICES)
def test_services_call_each_other_where_they_listen(service: str) -> None:
    addresses = [value for value in variables(service).values() if ":" in value]
    for address in addresses:
        host, port = address.removeprefix("redis://").split(":")
        called = pick(host.removeprefix("optimist-"), "Service")
        assert called["metadata"]["name"] == host
        assert [int(port)] == [one["port"] for one in called["spec"]["ports"]]


@pytest.mark.parametrize("service", [*SERVICES, "redis"])
def test_a_service_leads_to_the_port_that_is_listened_on(service: str) -> None:
    (port,) = container(service)["ports"]
    (outside,) = pick(service, "Service")["spec"]["ports"]
    assert port["containerPort"] == outside["port"] == listened_port(service)
    assert outside["targetPort"] == port["name"]
    labels = pick(service, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert pick(service, "Service")["spec"]["selector"] == labels


@pytest.mark.parametrize("service", [*SERVICES, "redis"])
def test_probes_ask_the_port_that_is_listened_on(service: str) -> None:
    (port,) = container(service)["ports"]
    probes = [value for name, value in container(service).items() if name.endswith("Probe")]
    assert {"readinessProbe", "livenessProbe"} <= set(container(service))
    for probe in probes:
        for action in ("grpc", "tcpSocket", "httpGet"):
            if action in probe:
                assert probe[action]["port"] in (port["name"], port["containerPort"])


@pytest.mark.parametrize("service", [*SERVICES, "redis"])
def test_pods_may_do_nothing_that_they_need_not(service: str) -> None:
    assert pod(service)["securityContext"]["runAsNonRoot"] is True
    assert pod(service)["automountServiceAccountToken"] is False
    assert container(service)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container(service)["resources"]["limits"]


@pytest.mark.parametrize("service", SERVICES)
def test_pods_get_no_variables_named_like_settings_from_the_cluster(service: str) -> None:
    assert pod(service)["enableServiceLinks"] is False


def test_pods_outlive_the_grace_that_their_service_gives_to_requests() -> None:
    grace = float(variables("gateway")["OPTIMIST_GATEWAY_GRACE_SECONDS"])
    assert pod("gateway")["terminationGracePeriodSeconds"] > grace + GRACE_SECONDS
    for service in ("scheduler", "worker", "proposer"):
        assert pod(service)["terminationGracePeriodSeconds"] > GRACE_SECONDS
