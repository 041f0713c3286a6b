"""`optimist bench NAME`: one benchmark; with --json its last line is one JSON object."""

import sys

from optimist_bench import edits
from optimist_common.errors import SetupError

BENCHMARKS = {"edits": edits.main}


def main(arguments: list[str]) -> int:
    """Runs the benchmark that the first argument names; returns the exit code."""
    names = ", ".join(sorted(BENCHMARKS))
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: optimist bench NAME [OPTIONS]   (NAME is one of: {names})")
        return 0 if arguments else 2
    if arguments[0] not in BENCHMARKS:
        raise SetupError(f"no benchmark {arguments[0]!r}; there are: {names}")
    return BENCHMARKS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
