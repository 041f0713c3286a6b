"""`make vllm-interface`: compares a release of vLLM with what the plugin and the engine build on.

`python -m tests.vllm.newest WHEEL` prints what moved since the newest recorded version, and exits
with 1 if anything did; `--record` writes tests/vllm/interface/MINOR.json.
"""

import argparse
import json
import sys
import zipfile
from pathlib import Path

from optimist_vllm.interface import ENGINE, PLUGIN, find_faults, read_interface

NEEDED = {"plugin": PLUGIN, "engine": ENGINE}
INTERFACES = Path(__file__).parent / "interface"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--record", action="store_true", help="write down what is found")
    arguments = parser.parse_args()
    minor = ".".join(arguments.wheel.name.split("-")[1].split(".")[:2])
    # As a resource of a package is read, without unpacking it.
    source = zipfile.Path(arguments.wheel, "vllm/")
    found = {name: read_interface(each, source) for name, each in NEEDED.items()}
    if arguments.record:
        (INTERFACES / f"{minor}.json").write_text(format_interface(found))
    newest = max(INTERFACES.glob("*.json"), key=lambda path: [*map(int, path.stem.split("."))])
    recorded = json.loads(newest.read_text())
    lines: list[str] = []
    for part, names in found.items():
        was = recorded.get(part, {})
        moved = [name for name in names if names[name] != was.get(name)]
        lines += [f"{name}: {was.get(name)} in {newest.stem}, {names[name]} now" for name in moved]
        faults = find_faults(NEEDED[part], names)
        lines += [f"the {part} does not work with it: {fault}" for fault in faults]
    print(f"vLLM {minor}:", "as recorded" if not lines else "\n".join(lines))
    return bool(lines)


def format_interface(found: dict[str, dict[str, list[str] | None]]) -> str:
    """Returns it as JSON with a line for each name."""
    parts = [
        f' "{part}": {{\n'
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in names.items())
        for part, names in found.items()
    ]
    return "{\n" + "\n },\n".join(parts) + "\n }\n}\n"


if __name__ == "__main__":
    sys.exit(main())
