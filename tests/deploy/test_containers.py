"""The stack in real containers: what `make compose-test` runs, where everything for it is there."""

import configparser
import os
import sys
from pathlib import Path

import pytest

from tests.command import run
from tests.stack import REPOSITORY

ENGINE = REPOSITORY / "deploy" / "containers" / "engine.sh"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_stack_runs_in_containers() -> None:
    if missing := run(ENGINE, "missing"):
        pytest.skip(f"no containers: {'; '.join(missing.splitlines())}")
    run(ENGINE, "images", timeout=1500)
    run(ENGINE, "run", sys.executable, "-m", "tests.containers", timeout=1500)


def test_a_build_gets_the_settings_of_pip_and_the_files_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "index" / "simple").mkdir(parents=True)
    certificate, written = tmp_path / "ca.crt", tmp_path / "pip.conf"
    certificate.touch()
    indices = f"file://{tmp_path}/index/simple https://index.test/simple"
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": indices}
    environment = {name: value for name, value in os.environ.items() if name[:4] != "PIP_"}
    script = REPOSITORY / "deploy" / "containers" / "pip_volumes.py"
    variables = environment | settings | {"PIP_CERT": str(certificate)}
    assert run(sys.executable, script, written, env=variables).splitlines() == [
        f"--volume={written}:/etc/pip.conf:ro",
        *(f"--volume={path}:{path}:ro" for path in (certificate, tmp_path / "index")),
    ]
    parser = configparser.ConfigParser()
    parser.read(written)
    assert dict(parser["global"]) == {"extra-index-url": indices, "cert": str(certificate)}
