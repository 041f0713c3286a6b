"""The stack in real containers: what `make compose-test` runs, where everything for it is there."""

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.manifest import REPOSITORY

ENGINE = str(REPOSITORY / "deploy" / "containers" / "engine.sh")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_stack_runs_in_containers() -> None:
    missing = subprocess.run([ENGINE, "missing"], capture_output=True, text=True, check=True)
    if missing.stdout:
        pytest.skip(f"no containers: {'; '.join(missing.stdout.splitlines())}")
    for command in (["images"], ["run", sys.executable, "-m", "tests.containers"]):
        result = subprocess.run(
            [ENGINE, *command], capture_output=True, text=True, check=False, timeout=1500
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_a_build_gets_the_settings_of_pip_and_the_files_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "index" / "simple").mkdir(parents=True)
    certificate, written = tmp_path / "ca.crt", tmp_path / "pip.conf"
    certificate.touch()
    indices = f"file://{tmp_path}/index/simple https://index.test/simple"
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": indices}
    environment = {name: value for name, value in os.environ.items() if name[:4] != "PIP_"}
    script = REPOSITORY / "deploy" / "containers" / "pip_volumes.py"
    result = subprocess.run(
        [sys.executable, str(script), str(written)],
        env=environment | settings | {"PIP_CERT": str(certificate)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines() == [
        f"--volume={written}:/etc/pip.conf:ro",
        *(f"--volume={path}:{path}:ro" for path in (certificate, tmp_path / "index")),
    ]
    parser = configparser.ConfigParser()
    parser.read(written)
    assert dict(parser["global"]) == {"extra-index-url": indices, "cert": str(certificate)}
