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


def test_runs_every_service_and_redis_and_more_only_if_asked() -> None:
    services = compose_services()
    profiles = {name: spec.get("profiles") for name, spec in services.items()}
    monitoring = {name: ["monitoring"] for name in ("prometheus", "grafana")}
    more = {"worker-gpu": ["gpu"], ENGINE: ["vllm"]}
    assert profiles == dict.fromkeys((*SERVICES, "redis")) | monitoring | more
    # They may be scaled.
    assert not any(spec.keys() & {"container_name", "hostname"} for spec in services.values())
    # Without any variable being set.
    text = COMPOSE.read_text()
    known = ("${MODEL:-tiny-edit}", "${GRACE_SECONDS:-60}", "${ENGINE_IMAGE:-optimist-vllm}")
    assert text.count("${") == sum(map(text.count, known))
    assert "--protected-mode no" in services["redis"]["command"]


def test_the_gpu_worker_is_the_worker_on_a_gpu() -> None:
    services = compose_services()
    plain, gpu = services["worker"], services["worker-gpu"]
    assert gpu["build"]["args"] == {"DEVICE": "cuda"}
    assert gpu["image"] != plain["image"]
    assert gpu["environment"].items() > plain["environment"].items()
    assert gpu["environment"]["OPTIMIST_WORKER_DEVICE"] == "cuda"
    # The checkpoint says what it is computed in: the bundled one needs float32.
    assert "OPTIMIST_WORKER_DTYPE" not in gpu["environment"]
    # And what weights leave of the device is its KV memory.
    assert "OPTIMIST_WORKER_KV_MEMORY_MIB" not in gpu["environment"]
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    # The scheduler finds it by the same name, and waits for it only if it is there.
    assert gpu["networks"]["default"]["aliases"] == ["worker"]
    assert services["scheduler"]["depends_on"]["worker-gpu"]["required"] is False


def test_an_engine_is_a_scheduler_to_gateway_and_prometheus() -> None:
    services = compose_services()
    scheduler, engine = services["scheduler"], services[ENGINE]
    assert engine["entrypoint"] == ["python3", "-m", "optimist_vllm.engine"]
    assert engine["networks"]["default"]["aliases"] == ["scheduler"]
    for name in ("PORT", "METRICS_PORT"):
        values = {
            (image_variables(service) | spec["environment"])[f"OPTIMIST_{service.upper()}_{name}"]
            for service, spec in (("scheduler", scheduler), (ENGINE, engine))
        }
        assert len(values) == 1
    assert services["gateway"]["depends_on"][ENGINE]["required"] is False
    gpu = services["worker-gpu"]
    assert engine["deploy"] == gpu["deploy"]
    assert engine["tmpfs"] == gpu["tmpfs"]
    # What it may write outlives the container.
    assert f"engine:{engine['environment']['HOME']}" in engine["volumes"]
    port = image_variables(ENGINE)["OPTIMIST_ENGINE_PORT"]
    health = ["CMD", "python3", "-m", "optimist_common.network.health", f"127.0.0.1:{port}"]
    assert engine["healthcheck"]["test"] == health


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


def test_what_is_waited_for_has_a_health_check() -> None:
    services = compose_services()
    for service in services.values():
        dependencies = service.get("depends_on", {})
        if isinstance(dependencies, list):
            assert set(dependencies) <= set(services)
            continue
        for name, dependency in dependencies.items():
            if dependency["condition"] == "service_healthy":
                is_own = name.removesuffix("-gpu") in SERVICES
                assert is_own or "healthcheck" in services[name]


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
