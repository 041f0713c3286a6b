"""`python -m tests.chaos faults|partitions|soak`: runs of the fleet; the last line is one JSON."""

import sys

from tests.chaos.command import Run, RunSettings, run_and_report
from tests.chaos.partitions import PartitionsSettings, run_partitions
from tests.chaos.run import FaultsSettings, run
from tests.chaos.soak import SoakSettings, soak

_MODES: dict[str, tuple[type[RunSettings], Run]] = {
    "faults": (FaultsSettings, run),
    "partitions": (PartitionsSettings, run_partitions),
    "soak": (SoakSettings, soak),
}


def main(arguments: list[str]) -> int:
    """Runs a mode and prints its report; returns 0 if all was right, 1 if not, 2 if misused."""
    mode, *rest = arguments or ["faults"]
    if mode not in _MODES:
        print("usage: python -m tests.chaos MODE [OPTIONS]", file=sys.stderr)  # noqa: T201
        return 2
    return run_and_report(f"chaos {mode}", *_MODES[mode], rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
