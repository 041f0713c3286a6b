"""The page's modules without a browser, by Node's test runner."""

import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent


def test_modules() -> None:
    files = sorted(str(path) for path in FOLDER.glob("*.test.js"))
    assert files
    ended = subprocess.run(
        ["node", "--test", *files], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
