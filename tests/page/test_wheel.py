import subprocess
import sys
import zipfile
from pathlib import Path

from optimist_gateway.page.files import STATIC

REPOSITORY = Path(__file__).parents[2]


def test_the_wheel_has_all_files_of_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*command, "--directory", str(tmp_path)], cwd=REPOSITORY, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    files = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()}
    assert "vendor/LICENSE.htm" in files
    assert {f"optimist_gateway/page/static/{file}" for file in files} <= packed
