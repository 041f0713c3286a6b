import subprocess
import sys

import pytest

IMPORT_ALL = """
import importlib, importlib.machinery, pkgutil, sys

class WithoutTorch(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        # Not found, as in the image; raising here would fail those who only ask for it.
        if name.split(".")[0] == "torch":
            return None
        return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = WithoutTorch
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
    print(module.name)
"""


@pytest.mark.parametrize(
    "package",
    ["optimist_common", "optimist_gateway", "optimist_scheduler", "optimist_proposer"],
)
def test_every_module_can_be_imported_without_torch(package: str) -> None:
    command = [sys.executable, "-c", IMPORT_ALL, package]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert f"{package}.settings" in result.stdout.split()


def test_the_worker_needs_torch() -> None:
    command = [sys.executable, "-c", IMPORT_ALL, "optimist_worker"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in result.stderr
