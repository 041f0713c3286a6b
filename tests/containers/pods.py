"""The pods of the CPU overlay, as kustomize renders them, under `podman kube play`."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from optimist_common.health import is_serving
from tests.containers.ask import ask_grpc, ask_rest
from tests.containers.engine import engine, run
from tests.deploy.installation import KUBERNETES, kubectl

_NETWORK = "optimist-pods"
_READY_SECONDS = 180.0
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def check_cpu_overlay() -> str:
    """Every pod starts, by REST and by gRPC a gateway answers with predictions."""
    started = time.monotonic()
    with _pods() as (names, gateway):
        while not is_serving(f"{gateway}:50050", 2.0):
            assert time.monotonic() < started + _READY_SECONDS, _logs(names)
            time.sleep(0.2)
        seconds = time.monotonic() - started
        rest, grpc = ask_rest(gateway), ask_grpc(gateway)
        log = _logs(names)
        assert "Traceback" not in log, log
    return (
        f"{len(names)} pods, serving after {seconds:.0f} s, "
        f"{rest} predicted tokens accepted by REST, {grpc} by gRPC"
    )


@contextmanager
def _pods() -> Iterator[tuple[list[str], str]]:
    """Plays every workload; yields the names of the pods and the address of a gateway."""
    engine("network", "create", _NETWORK)
    try:
        with tempfile.TemporaryDirectory() as directory:
            for workload in _workloads():
                file = Path(directory) / f"{workload['metadata']['name']}.yaml"
                file.write_text(yaml.safe_dump(workload))
                # By the name of its Service, as in a cluster.
                network = f"{_NETWORK}:alias={workload['metadata']['name']}"
                engine("kube", "play", "--quiet", "--network", network, str(file))
        names = engine("pod", "ps", "--format", "{{.Name}}").split()
        gateway = next(name for name in names if name.startswith("optimist-gateway"))
        infra = engine("pod", "inspect", "--format", "{{.InfraContainerID}}", gateway).strip()
        ips = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        yield names, engine("inspect", "--format", ips, infra).strip()
    finally:
        engine("pod", "rm", "--all", "--force", "--time", "0")
        engine("network", "rm", _NETWORK)


def _workloads() -> Iterator[dict[str, Any]]:
    """Yields the Deployments of the overlay, without what podman cannot run.

    It would publish each port of a container on the host, once, and run probes by tools that the
    images lack; instead it uses the health checks of the images.
    """
    rendered = run(kubectl(), "kustomize", str(KUBERNETES / "overlays" / "cpu"))
    for document in yaml.safe_load_all(rendered):
        if document["kind"] != "Deployment":
            continue
        for container in document["spec"]["template"]["spec"]["containers"]:
            for name in ("ports", *_PROBES):
                container.pop(name, None)
            image = container["image"]
            if image.startswith("optimist-"):
                engine("tag", image.partition(":")[0], image)
        yield document


def _logs(names: list[str]) -> str:
    return "\n".join(f"{name}:\n{engine('pod', 'logs', name)}" for name in names)
