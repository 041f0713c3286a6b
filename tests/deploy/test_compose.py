"""docker-compose.yml names what there is, and its services find each other."""

import sys
from pathlib import Path

import pytest

from tests.command import run
from tests.deploy.manifest import (
    ENGINE,
    REPOSITORY,
    SERVICES,
    chosen,
    compose_services,
    image_variables,
    settings_class,
    settings_values,
)

COMPOSE = REPOSITORY / "docker-compose.yml"
_CALLS = {("gateway", "SCHEDULERS"), ("scheduler", "WORKERS"), ("scheduler", "PROPOSERS")}


def test_follows_the_compose_specification() -> None:
    check = Path(sys.executable).with_name("check-jsonschema")
    run(check, "--builtin-schema", "vendor.compose-spec", COMPOSE)


@pytest.mark.parametrize("name", [*SERVICES, "worker-gpu", ENGINE])
def test_builds_each_service_and_gives_it_settings_that_it_accepts(name: str) -> None:
    service, spec = name.removesuffix("-gpu"), compose_services()[name]
    built = REPOSITORY / spec["build"]["context"] / spec["build"]["dockerfile"]
    dockerfile = "engines/vllm" if name == ENGINE else f"services/{service}"
    assert built.samefile(REPOSITORY / dockerfile / "Dockerfile")
    defaults = {key: chosen(value) for key, value in spec.get("environment", {}).items()}
    settings_class(service)(**settings_values(service, image_variables(service) | defaults))


def test_services_call_each_other_where_they_listen() -> None:
    for service, name in _CALLS:
        variables = compose_services()[service]["environment"]
        host, port = variables[f"OPTIMIST_{service.upper()}_{name}"].split(":")
        assert image_variables(host)[f"OPTIMIST_{host.upper()}_PORT"] == port


def test_only_what_people_look_at_is_published_and_only_on_the_loopback() -> None:
    services = compose_services()
    assert {name: spec["ports"] for name, spec in services.items() if "ports" in spec} == {
        "gateway": ["127.0.0.1:8000:8000", "127.0.0.1:50050:50050"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    variables = image_variables("gateway") | services["gateway"]["environment"]
    listening = [str(variables[f"OPTIMIST_GATEWAY_{name}"]) for name in ("PORT", "GRPC_PORT")]
    assert listening == ["8000", "50050"]
    # One number says how long answers may take to finish.
    seconds = variables["OPTIMIST_GATEWAY_GRACE_SECONDS"]
    assert services["gateway"]["stop_grace_period"] == f"1m{seconds}s"
