"""`python -m tests.fuzz`: random requests with drafts and without; the last line is one JSON."""

import sys

from tests.chaos.command import run_and_report
from tests.fuzz.run import FuzzSettings, fuzz

if __name__ == "__main__":
    sys.exit(run_and_report("fuzz", FuzzSettings, fuzz, sys.argv[1:]))
