"""Installations on Kubernetes, as kustomize renders them, and what is in them."""

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.manifest import REPOSITORY, SERVICES

KUBERNETES = REPOSITORY / "deploy" / "k8s"
OVERLAYS = (
    "base",
    *(f"overlays/{name}" for name in ("cpu", "gpu", "tensor-parallel")),
)
VLLM = "overlays/vllm"
"""An installation of its own, without our services."""
STACKS = {
    "alone": (),
    "keda": (
        *("monitoring", "autoscaling-keda", "mtls", "cert-manager", "api-keys", "strict"),
        *("http-route", "model-volume", "redis-sentinel"),
    ),
    "hpa": (
        *("monitoring", "autoscaling-hpa", "mtls", "cert-manager", "api-keys", "ingress"),
        *("https", "model-image"),
    ),
}
ENGINES = "overlays/vllm-engines"
"""vLLM below our gateways."""
_WITHOUT_SERVICES = ("autoscaling-hpa", "redis-sentinel")
ENGINE_STACKS = {
    name: tuple(
        "autoscaling-engines" if component == "autoscaling-keda" else component
        for component in stack
        if component not in _WITHOUT_SERVICES
    )
    for name, stack in STACKS.items()
}
# What is common to overlays is tried with one of them.
_TRIED = {
    **dict.fromkeys(("base", ENGINES), ("alone", "keda", "hpa")),
    "overlays/cpu": ("keda",),
    "overlays/gpu": ("hpa",),
    "overlays/tensor-parallel": ("keda", "hpa"),
    VLLM: ("alone",),
}
COMBINATIONS = {
    f"{overlay.removeprefix('overlays/')}-{name}": (
        overlay,
        (ENGINE_STACKS if overlay == ENGINES else STACKS)[name],
    )
    for overlay, names in _TRIED.items()
    for name in names
}
"""Every overlay, and every component on one that it changes."""
PROTECTED = [one for name, one in COMBINATIONS.items() if name.endswith("-keda")]
COMPONENTS = sorted({one for stack in (*STACKS.values(), *ENGINE_STACKS.values()) for one in stack})


@dataclass(frozen=True)
class Pod:
    """What a workload makes pods of."""

    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def role(self) -> str:
        """Its name without what all share: gateway, worker, worker-rank, engine, redis."""
        return self.labels["app.kubernetes.io/name"].removeprefix("optimist-")

    @property
    def service(self) -> str:
        """Whose image it runs."""
        return self.role.removesuffix("-rank")

    @property
    def is_rank(self) -> bool:
        """Whether it only computes, for the leader of its group."""
        return self.role.endswith("-rank")

    @property
    def container(self) -> dict[str, Any]:
        """The container of that service."""
        (found,) = (one for one in self.spec["containers"] if one["name"] == self.service)
        assert isinstance(found, dict)
        return found

    @property
    def variables(self) -> dict[str, str]:
        """The container's settings."""
        variables = self.container.get("env", [])
        return {one["name"]: one["value"] for one in variables if "value" in one}

    @property
    def ports(self) -> dict[str, int]:
        """The ports of all containers, by name."""
        return {
            port["name"]: port["containerPort"]
            for container in self.spec["containers"]
            for port in container.get("ports", [])
        }


@dataclass(frozen=True)
class Installation:
    """Everything that one `kubectl apply -k` brings."""

    documents: tuple[dict[str, Any], ...]

    def kind(self, *kinds: str) -> dict[str, dict[str, Any]]:
        """Returns the documents of some kinds by their name."""
        found = [one for one in self.documents if one["kind"] in kinds]
        by_name = {one["metadata"]["name"]: one for one in found}
        assert len(by_name) == len(found)
        return by_name

    @functools.cached_property
    def pods(self) -> list[Pod]:
        """All kinds of pods that there will be."""
        return list(self._pods())

    def _pods(self) -> Iterator[Pod]:
        for name, one in self.kind("Deployment", "StatefulSet").items():
            pod = _pod(name, one["spec"]["template"])
            templates = one["spec"].get("volumeClaimTemplates", [])
            own = [{"name": each["metadata"]["name"]} for each in templates]
            yield replace(pod, spec={**pod.spec, "volumes": [*pod.spec["volumes"], *own]})
        for name, one in self.kind("LeaderWorkerSet").items():
            template = one["spec"]["leaderWorkerTemplate"]
            yield _pod(name, template["leaderTemplate"])
            yield _pod(name, template["workerTemplate"])

    def called_by(self, pod: Pod) -> Iterator[tuple[dict[str, Any], int]]:
        """Iterates over the Services, and the ports, that a pod's settings name."""
        for value in pod.variables.values() if pod.service in SERVICES else ():
            for address in value.split("//")[-1].split("/")[0].split(","):
                host, separator, port = address.rpartition(":")
                if separator:
                    yield self.kind("Service")[host.rpartition(".")[2]], int(port)

    def selected(self, selector: Mapping[str, Any]) -> list[Pod]:
        """Returns the pods that a label selector means."""
        return [pod for pod in self.pods if matches(selector, pod.labels)]


def _pod(owner: str, template: Mapping[str, Any]) -> Pod:
    return Pod(owner, template["metadata"]["labels"], template["spec"])


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Tells whether a label selector means what has these labels."""
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    wanted = {key: [value] for key, value in selector.get("matchLabels", {}).items()}
    for one in selector.get("matchExpressions", []):
        assert one["operator"] == "In"
        wanted[one["key"]] = one["values"]
    return all(labels.get(key) in values for key, values in wanted.items())


def kubectl() -> str:
    """Returns the kubectl to use: that which `make test` provides, or else this machine's."""
    own = REPOSITORY / ".venv" / "bin" / "kubectl"
    found = str(own) if own.exists() else shutil.which("kubectl")
    assert found, "there is no kubectl: `make test` provides one"
    return found


@functools.cache
def render(
    overlay: str,
    components: tuple[str, ...] = (),
    beside: tuple[str, ...] = (),
    own: str = "",
) -> Installation:
    """Renders an overlay, with components and what stands beside it, as one of one's own would.

    `own` is a document that is added.
    """
    with tempfile.TemporaryDirectory() as directory:

        def path(name: str) -> str:
            return os.path.relpath(KUBERNETES / name, os.path.realpath(directory))

        content: dict[str, Any] = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [path(name) for name in (overlay, *beside)],
            "components": [path(f"components/{name}") for name in components],
        }
        if own:
            (Path(directory) / "own.yaml").write_text(own)
            content["resources"].append("own.yaml")
        (Path(directory) / "kustomization.yaml").write_text(yaml.safe_dump(content))
        command = [kubectl(), "kustomize", directory]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "deprecated" not in result.stderr
    return Installation(tuple(yaml.load_all(result.stdout, Loader=yaml.CSafeLoader)))
