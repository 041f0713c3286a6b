"""Pods of overlays, as kustomize renders them, under `podman kube play`."""

import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from optimist_common.network.health import is_serving
from tests.command import run
from tests.containers.ask import ask_grpc, ask_rest
from tests.containers.engine import address, engine
from tests.deploy.installation import KUBERNETES, kubectl

_NETWORK = "optimist-pods"
_READY_SECONDS = 180.0
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def check_cpu_overlay() -> str:
    """Every pod starts, by REST and by gRPC a gateway answers with predictions."""
    started = time.monotonic()
    with play([[one] for one in rendered("cpu") if one["kind"] == "Deployment"]) as names:
        gateway = pod_address(next(name for name in names if name.startswith("optimist-gateway")))
        while not is_serving(f"{gateway}:50050", 2.0):
            assert time.monotonic() < started + _READY_SECONDS, pod_logs(names)
            time.sleep(0.2)
        seconds = time.monotonic() - started
        rest, grpc = ask_rest(f"http://{gateway}:8000"), ask_grpc(gateway)
        log = pod_logs(names)
        assert "Traceback" not in log, log
    return (
        f"{len(names)} pods, serving after {seconds:.0f} s, "
        f"{rest} predicted tokens accepted by REST, {grpc} by gRPC"
    )


@contextmanager
def play(workloads: Iterable[list[dict[str, Any]]]) -> Iterator[list[str]]:
    """Plays workloads, each with what belongs to it; yields the names of the pods."""
    engine("network", "create", _NETWORK)
    try:
        with tempfile.TemporaryDirectory() as directory:
            for documents in workloads:
                name = documents[-1]["metadata"]["name"]
                file = Path(directory) / f"{name}.yaml"
                file.write_text(yaml.safe_dump_all(documents))
                # By the name of its Service, as in a cluster.
                network = f"{_NETWORK}:alias={name}"
                engine("kube", "play", "--quiet", "--network", network, str(file))
        yield engine("pod", "ps", "--format", "{{.Name}}").split()
    finally:
        engine("pod", "rm", "--all", "--force", "--time", "0")
        engine("network", "rm", _NETWORK)


def rendered(overlay: str) -> Iterator[dict[str, Any]]:
    """Yields the documents of an overlay, Deployments without what podman cannot run.

    It would publish each port of a container on the host, once, and run probes by tools that the
    images lack; instead it uses the health checks of the images.
    """
    text = run(kubectl(), "kustomize", str(KUBERNETES / "overlays" / overlay))
    for document in yaml.safe_load_all(text):
        if document["kind"] == "Deployment":
            for container in document["spec"]["template"]["spec"]["containers"]:
                for name in ("ports", *_PROBES):
                    container.pop(name, None)
                image = container["image"]
                if image.startswith("optimist-"):
                    engine("tag", image.partition(":")[0], image)
        yield document


def pod_address(name: str) -> str:
    """Returns the address of a pod in its network."""
    return address(engine("pod", "inspect", "--format", "{{.InfraContainerID}}", name).strip())


def pod_logs(names: list[str]) -> str:
    """Returns what all containers of pods have printed."""
    return "\n".join(f"{name}:\n{engine('pod', 'logs', name)}" for name in names)
