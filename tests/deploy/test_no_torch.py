"""Only the worker needs PyTorch."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

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
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
    print(module.name)
"""

RUN = "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def import_all(package: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDE_TORCH + IMPORT_ALL, package]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "package", ["optimist_common", "optimist_gateway", "optimist_scheduler", "optimist_proposer"]
)
def test_every_module_can_be_imported_without_torch(package: str) -> None:
    result = import_all(package)
    assert result.returncode == 0, result.stderr
    assert any(name.endswith(".settings") for name in result.stdout.split())


def test_the_worker_cannot_be_imported_without_torch() -> None:
    assert "No module named 'torch'" in import_all("optimist_worker").stderr


@pytest.mark.parametrize("service", ["gateway"])
def test_reads_the_bundled_tokenizer_and_listens_without_torch(
    service: str, tmp_path: Path
) -> None:
    port, prefix, variables = free_port(), f"OPTIMIST_{service.upper()}", image_variables(service)
    model = str(REPOSITORY / variables[f"{prefix}_MODEL"].removeprefix("/"))
    variables |= {f"{prefix}_HOST": "127.0.0.1", f"{prefix}_PORT": str(port)}
    variables[f"{prefix}_MODEL"] = model

    def is_listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    command = [sys.executable, "-c", HIDE_TORCH + RUN, f"optimist_{service}"]
    process = Process(service, command, f"127.0.0.1:{port}", variables, tmp_path / "log")
    process.start()
    wait_until(lambda: is_listening() or not process.is_running, "a service", START_SECONDS)
    assert process.is_running
    process.stop()
