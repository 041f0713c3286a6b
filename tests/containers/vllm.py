"""vLLM's image with plugin and engine: as `docker run` and compose start it, and as pods."""

import json
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from optimist_common.network.health import is_serving
from tests.chaos.load.case import MODEL_NAME
from tests.containers.ask import ask_grpc, ask_rest
from tests.containers.compose import HOST
from tests.containers.engine import address, compose, containers, engine, left_over
from tests.containers.pods import play, pod_address, pod_logs, rendered
from tests.stack import BUNDLED_MODEL, VLLM_VARIABLES
from tests.vllm.server import FLAG, START_SECONDS

# What vLLM's CPU build and a small model want, and a GPU with another one does without.
_OPTIONS = ("--dtype", "float32", "--max-model-len", "2048", "--enforce-eager")
_ARGUMENTS = ("/model", *_OPTIONS, "--served-model-name", MODEL_NAME)
_FILES = ("docker-compose.yml", str(Path(__file__).with_name("engine-on-cpu.yml")))
_COMPOSE = (*(word for each in _FILES for word in ("--file", each)), "--profile", "vllm")
_USER = 2000
_KEY = "a-key"


def check_image() -> str:
    """The command of docs/vllm.md."""
    variables = [word for each in VLLM_VARIABLES.items() for word in ("--env", "=".join(each))]
    options = ("--detach", "--ipc=host", "--volume", f"{BUNDLED_MODEL}:/model:ro", *variables)
    flag = ("--speculative-config", FLAG)
    container = engine("run", *options, "optimist-vllm", *_ARGUMENTS, *flag).strip()
    try:
        return _ask(address(container), "none", lambda: engine("logs", container))
    finally:
        engine("rm", "--force", container)


def check_compose() -> str:
    """The profile of docker-compose.yml: an engine and a gateway; the engine ends and is back."""
    started = time.monotonic()
    try:
        compose(*_COMPOSE, "up", "--detach", "--no-deps", "--wait", "gateway", "engine")
        healthy = time.monotonic() - started
        rest, grpc = ask_rest(f"http://{HOST}:8000"), ask_grpc(HOST)
        (container,) = containers("engine", *_COMPOSE)
        stopping = time.monotonic()
        compose(*_COMPOSE, "stop", "engine")
        stopped = time.monotonic() - stopping
        code = engine("inspect", "--format", "{{.State.ExitCode}}", container).strip()
        assert code == "0", compose(*_COMPOSE, "logs", "engine")
        compose(*_COMPOSE, "up", "--detach", "--no-deps", "--wait", "engine")
        again = ask_rest(f"http://{HOST}:8000")
    finally:
        compose(*_COMPOSE, "down", "--volumes", "--remove-orphans")
    assert not (left := left_over()), left
    return (
        f"healthy after {healthy:.0f} s, {rest} predicted tokens accepted by REST, {grpc} by gRPC, "
        f"stopped after {stopped:.1f} s, {again} accepted when it is back"
    )


def check_engines_overlay() -> str:
    """A gateway and an engine of their overlay, upon a CPU and with a model that is mounted."""
    found = list(rendered("vllm-engines"))
    gateway, stateful = (
        next(one for one in found if one["kind"] == kind) for kind in ("Deployment", "StatefulSet")
    )
    deployment = {**stateful, "apiVersion": "apps/v1", "kind": "Deployment"}
    deployment["spec"]["replicas"] = gateway["spec"]["replicas"] = 1
    # podman knows no StatefulSet and no fsGroup.
    (claim,) = deployment["spec"].pop("volumeClaimTemplates")
    claim |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    claim["metadata"]["annotations"] = {"volume.podman.io/uid": str(_USER)}
    spec = deployment["spec"]["template"]["spec"]
    cache = {"name": "cache", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    spec["volumes"].append(cache)
    _run_on_cpu(spec, [*spec["containers"][0]["args"], *_OPTIONS])
    model = {"name": "OPTIMIST_ENGINE_MODEL", "value": "/model"}
    spec["containers"][0]["env"].append(model)
    # Its image has the model.
    own = gateway["spec"]["template"]["spec"]["containers"][0]
    own["env"] = [one for one in own["env"] if one["name"] != "OPTIMIST_GATEWAY_MODEL"]
    for each in (own, spec["containers"][0]):
        each["env"] = [one for one in each["env"] if "value" in one]
    started = time.monotonic()
    with play([[claim, deployment], [gateway]]) as names:
        host = pod_address(next(name for name in names if "gateway" in name))
        while not is_serving(f"{host}:50050", 2.0):
            assert time.monotonic() < started + START_SECONDS, pod_logs(names)
            time.sleep(0.5)
        seconds = time.monotonic() - started
        rest, grpc = ask_rest(f"http://{host}:8000"), ask_grpc(host)
    return (
        f"serving after {seconds:.0f} s, {rest} predicted tokens accepted by REST, {grpc} by gRPC"
    )


def check_overlay() -> str:
    """The pod of the overlay, upon a CPU and with a model that is mounted."""
    found = {one["kind"]: one for one in rendered("vllm")}
    claim, deployment = found["PersistentVolumeClaim"], found["Deployment"]
    # podman knows no fsGroup.
    claim["metadata"]["annotations"] = {"volume.podman.io/uid": str(_USER)}
    spec = deployment["spec"]["template"]["spec"]
    _run_on_cpu(spec, [*_ARGUMENTS, *spec["containers"][0]["args"][1:]])
    with tempfile.NamedTemporaryFile("w+") as file:
        # As this release of podman reads what a cluster has as a Secret.
        json.dump({"api-key": b64encode(_KEY.encode()).decode()}, file)
        file.flush()
        engine("secret", "create", "optimist-vllm", file.name)
    try:
        with play([[claim, deployment]]) as names:
            return _ask(pod_address(names[0]), _KEY, lambda: pod_logs(names))
    finally:
        engine("secret", "rm", "optimist-vllm")


def _run_on_cpu(spec: dict[str, Any], arguments: list[str]) -> None:
    (container,) = spec["containers"]
    del container["resources"]
    container["args"] = arguments
    container["env"] += [{"name": name, "value": value} for name, value in VLLM_VARIABLES.items()]
    container["volumeMounts"].append({"name": "model", "mountPath": "/model", "readOnly": True})
    # podman gives an emptyDir the rights of the image's directory, a cluster those of /tmp.
    shared = {"name": "shm", "hostPath": {"path": "/dev/shm", "type": "Directory"}}
    spec["volumes"] = [each for each in spec["volumes"] if each["name"] != "shm"] + [shared]
    path = {"path": str(BUNDLED_MODEL), "type": "Directory"}
    spec["volumes"].append({"name": "model", "hostPath": path})


def _ask(host: str, key: str, logs: Callable[[], str]) -> str:
    """Asks as soon as it serves; returns what to say of it."""
    url = f"http://{host}:8000"
    started = time.monotonic()
    while not _is_healthy(url):
        assert not engine("ps", "--all", "--quiet", "--filter", "status=exited"), logs()
        assert time.monotonic() < started + START_SECONDS, logs()
        time.sleep(0.5)
    seconds = time.monotonic() - started
    without_key = httpx.get(f"{url}/v1/models", timeout=5.0, trust_env=False)
    assert without_key.status_code == (401 if key == _KEY else 200), without_key.text
    accepted = ask_rest(url, key)
    return f"serving after {seconds:.0f} s, {accepted} predicted tokens accepted"


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).is_success
    except httpx.TransportError:
        return False
