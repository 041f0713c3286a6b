"""Only the worker needs PyTorch."""

import socket
import subprocess
import sys
from pathlib import Path

from tests.deploy.manifest import REPOSITORY, image_variables
from tests.stack import START_SECONDS, Process, free_port, wait_until

HIDE_TORCH = """
import importlib, importlib.machinery, pkgutil, runpy, sys

class WithoutTorch(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        # Not found, as in the image; raising here would fail those who only ask for it.
        if name.split(".")[0] == "torch":
            return None
        return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = WithoutTorch
"""

IMPORT_ALL = """
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
        print(module.name)
"""

RUN = "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def test_every_module_but_the_worker_s_can_be_imported_without_torch() -> None:
    packages = [f"optimist_{name}" for name in ("common", "gateway", "scheduler", "proposer")]
    command = [sys.executable, "-c", HIDE_TORCH + IMPORT_ALL, *packages, "optimist_worker"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in result.stderr
    imported = result.stdout.split()
    assert all(f"{package}.settings" in imported for package in packages)
    assert "optimist_worker.settings" not in imported


def test_the_gateway_reads_the_bundled_tokenizer_and_listens_without_torch(tmp_path: Path) -> None:
    port, variables = free_port(), image_variables("gateway")
    model = str(REPOSITORY / variables["OPTIMIST_GATEWAY_MODEL"].removeprefix("/"))
    variables |= {"OPTIMIST_GATEWAY_HOST": "127.0.0.1", "OPTIMIST_GATEWAY_PORT": str(port)}
    variables["OPTIMIST_GATEWAY_MODEL"] = model

    def is_listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    command = [sys.executable, "-c", HIDE_TORCH + RUN, "optimist_gateway"]
    process = Process("gateway", command, f"127.0.0.1:{port}", variables, tmp_path / "log")
    process.start()
    wait_until(lambda: is_listening() or not process.is_running, "a service", START_SECONDS)
    assert process.is_running
    process.stop()
