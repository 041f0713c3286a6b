"""Starts the worker: `python -m optimist_worker --model DIRECTORY`."""

import sys

from optimist_common.errors import run_or_explain
from optimist_common.logs import configure_logging
from optimist_common.server import require_free, run_service
from optimist_common.settings import load_settings
from optimist_worker.cost import measure_costs
from optimist_worker.service import build_runner, serve
from optimist_worker.settings import WorkerSettings


def main(arguments: list[str] | None = None) -> int:
    """Serves until a signal; returns the exit code."""

    def start() -> None:
        settings = load_settings(WorkerSettings, sys.argv[1:] if arguments is None else arguments)
        configure_logging(settings.log_level, settings.log_format, settings.section)
        # Before the weights are loaded, which may take minutes.
        require_free(settings.host, settings.port)
        runner = build_runner(settings)
        costs = measure_costs(runner, settings.cost_seconds)
        run_service(lambda: serve(settings, runner, costs))

    return run_or_explain("optimist worker", start)


if __name__ == "__main__":
    sys.exit(main())
