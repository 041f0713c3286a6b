"""`optimist bench NAME`: one benchmark; with --json it prints one line of JSON and nothing else."""

import importlib
import sys

from optimist_common.errors import SetupError

# Modules with `main(arguments) -> int`, imported only when they are called: each needs its parts.
BENCHMARKS = {
    "apply": "optimist_bench.apply.command",
    "edits": "optimist_bench.edits",
    "engines": "optimist_bench.engines.command",
    "forms": "optimist_bench.forms.command",
    "graphs": "optimist_bench.graphs",
    "hybrid": "optimist_bench.hybrid.command",
    "never-worse": "optimist_bench.never_worse.command",
    "overhead": "optimist_bench.overhead.command",
    "overlap": "optimist_bench.overlap.command",
    "predictions": "optimist_bench.predictions.command",
    "quantization": "optimist_bench.quantization",
    "scheduler": "optimist_bench.scheduler.command",
    "windows": "optimist_bench.windows",
}


def main(arguments: list[str]) -> int:
    """Runs the benchmark that the first argument names; returns the exit code."""
    names = ", ".join(sorted(BENCHMARKS))
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: optimist bench NAME [OPTIONS]   (NAME is one of: {names})")
        return 0 if arguments else 2
    if arguments[0] not in BENCHMARKS:
        raise SetupError(f"no benchmark {arguments[0]!r}; there are: {names}")
    code: int = importlib.import_module(BENCHMARKS[arguments[0]]).main(arguments[1:])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
