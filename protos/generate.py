"""Generates the Python stubs from the protos, or checks that the committed ones are fresh."""

import argparse
import filecmp
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc_tools

PROTOS = Path(__file__).parent
STUBS = PROTOS / "gen"


def generate(target: Path) -> None:
    """Writes the stubs of every proto below `target`."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("optimist/**/*.proto"))
    # Plugins are named by path so that no virtual environment has to be activated.
    scripts = Path(sys.executable).parent
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"-I{well_known}"]
    command += [f"--plugin={name}={scripts / name}" for name in PLUGINS]
    command += [f"--{kind}_out={target}" for kind in ("python", "grpc_python")]
    command += [f"--{kind}_out=quiet:{target}" for kind in ("mypy", "mypy_grpc")]
    subprocess.run([*command, *sources], check=True, cwd=PROTOS)
    package_directories = {path.parent for path in target.rglob("*_pb2.py")}
    for directory in package_directories:
        while directory != target:
            (directory / "__init__.py").touch()
            directory = directory.parent
    (target / "optimist" / "py.typed").touch()


PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")


def stale_files(fresh: Path) -> list[str]:
    """Returns the names of committed stubs that differ from those in `fresh`."""
    names = {
        str(path.relative_to(root))
        for root in (fresh, STUBS)
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    _, different, missing = filecmp.cmpfiles(fresh, STUBS, sorted(names), shallow=False)
    return different + missing


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 if stale")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        fresh = Path(directory)
        generate(fresh)
        if arguments.check:
            stale = stale_files(fresh)
            for name in stale:
                print(f"stale: protos/gen/{name} (run `make protos`)", file=sys.stderr)
            return 1 if stale else 0
        shutil.rmtree(STUBS, ignore_errors=True)
        shutil.copytree(fresh, STUBS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
