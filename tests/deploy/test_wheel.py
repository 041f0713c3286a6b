import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from tests.deploy.manifest import REPOSITORY


def test_the_wheel_has_all_files_of_its_packages_and_no_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*command, "--directory", str(tmp_path)], cwd=REPOSITORY, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    files = {
        path.relative_to((REPOSITORY / package).parent).as_posix()
        for package in packages
        for path in (REPOSITORY / package).rglob("*")
        # A machine compiles the kernels for itself.
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    assert "optimist_gateway/fronts/page/static/vendor/LICENSE.htm" in files
    assert packed == files
