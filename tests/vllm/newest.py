"""`make vllm-interface`: compares a release of vLLM with what the plugin builds on.

`python -m tests.vllm.newest WHEEL` prints what moved since the newest recorded version, and exits
with 1 if anything did; `--record` writes tests/vllm/interface/MINOR.json.
"""

import argparse
import json
import sys
import zipfile
from pathlib import Path

from optimist_vllm.interface import find_faults, read_interface

INTERFACES = Path(__file__).parent / "interface"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--record", action="store_true", help="write down what is found")
    arguments = parser.parse_args()
    minor = ".".join(arguments.wheel.name.split("-")[1].split(".")[:2])
    # As a resource of a package is read, without unpacking it.
    found = read_interface(zipfile.Path(arguments.wheel, "vllm/"))
    if arguments.record:
        text = json.dumps(found, indent=1) + "\n"
        (INTERFACES / f"{minor}.json").write_text(text)
    newest = max(INTERFACES.glob("*.json"), key=lambda path: [*map(int, path.stem.split("."))])
    recorded = json.loads(newest.read_text())
    moved = [name for name in found if found[name] != recorded.get(name)]
    lines = [f"{name}: {recorded.get(name)} in {newest.stem}, {found[name]} now" for name in moved]
    lines += [f"the plugin does not work with it: {fault}" for fault in find_faults(found)]
    print(f"vLLM {minor}:", "as recorded" if not lines else "\n".join(lines))
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
