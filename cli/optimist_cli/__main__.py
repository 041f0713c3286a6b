"""The command `optimist`: one subcommand for each thing that a user does."""

import importlib
import sys
from importlib.metadata import version

from optimist_common.errors import SetupError, run_or_explain

# Name, module with `main(arguments) -> int`, and what it does. Modules are imported only when they
# are called, so that an image with one service needs no other.
COMMANDS = {
    "serve": (
        "optimist_cli.serve.command",
        "start all services on this machine with one model",
    ),
    "convert": ("optimist_worker.conversion.__main__", "make a model directory of a GGUF file"),
    "complete": ("optimist_cli.complete", "send one request and stream the answer in colour"),
    "bench": ("optimist_bench.__main__", "measure through the running services"),
    "train": (
        "optimist_training.drafters.command",
        "train draft networks, or the proposer from edits",
    ),
    "explain": (
        "optimist_cli.explain.command",
        "show what was drafted for one request, from its log",
    ),
    "replay": ("optimist_scheduler.service.replay", "check that a scheduler's log comes out again"),
    "gateway": ("optimist_gateway.__main__", "start the REST gateway alone"),
    "scheduler": ("optimist_scheduler.__main__", "start the scheduler alone"),
    "engine": ("optimist_cli.engine", "start vLLM as a scheduler with its workers"),
    "worker": ("optimist_worker.__main__", "start a worker alone"),
    "proposer": ("optimist_proposer.__main__", "start a proposer alone"),
}

# Where the extra that a command needs has another name.
EXTRAS = {"complete": "cli", "convert": "worker", "replay": "scheduler", "train": "training"}


def usage() -> str:
    """Returns the help text: a line per command."""
    lines = ["usage: optimist COMMAND [OPTIONS]   (optimist COMMAND --help lists the options)", ""]
    lines += [f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Runs one subcommand; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"optimist {version('optimist')}")
        return 0
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        print(f"optimist: no command {name!r} (see optimist --help)", file=sys.stderr)
        return 2
    codes: list[int] = []
    failure = run_or_explain(f"optimist {name}", lambda: codes.append(_run(name, rest)))
    return codes[0] if codes else failure


def _run(name: str, rest: list[str]) -> int:
    try:
        module = importlib.import_module(COMMANDS[name][0])
    except ModuleNotFoundError as error:
        raise SetupError(
            f"{error.name} is not installed; install this part with: "
            f"pip install 'optimist[{EXTRAS.get(name, name)}]'"
        ) from None
    code: int = module.main(rest)
    return code


if __name__ == "__main__":
    sys.exit(main())
