"""vLLM's image with the plugin: as `docker run` starts it, and as the pod of its overlay."""

import json
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import httpx

from tests.chaos.load.case import MODEL_NAME
from tests.containers.ask import ask_rest
from tests.containers.engine import address, engine
from tests.containers.pods import play, pod_address, pod_logs, rendered
from tests.stack import BUNDLED_MODEL, VLLM_VARIABLES
from tests.vllm.server import FLAG, START_SECONDS

# What vLLM's CPU build and a small model want, and a GPU with another one does without.
_OPTIONS = ("--dtype", "float32", "--max-model-len", "2048", "--enforce-eager")
_ARGUMENTS = ("/model", *_OPTIONS, "--served-model-name", MODEL_NAME)
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


def check_overlay() -> str:
    """The pod of the overlay, upon a CPU and with a model that is mounted."""
    found = {one["kind"]: one for one in rendered("vllm")}
    claim, deployment = found["PersistentVolumeClaim"], found["Deployment"]
    # podman knows no fsGroup.
    claim["metadata"]["annotations"] = {"volume.podman.io/uid": str(_USER)}
    _run_on_cpu(deployment["spec"]["template"]["spec"])
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


def _run_on_cpu(spec: dict[str, Any]) -> None:
    (container,) = spec["containers"]
    del container["resources"]
    container["args"] = [*_ARGUMENTS, *container["args"][1:]]
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
