"""Starts the scheduler: `python -m optimist_scheduler`."""

import sys

from optimist_common.errors import run_or_explain
from optimist_common.network.server import run_service
from optimist_common.observing.logs import configure_logging
from optimist_common.settings import load_settings
from optimist_scheduler.service.serve import serve
from optimist_scheduler.settings import SchedulerSettings


def main(arguments: list[str] | None = None) -> int:
    """Serves until a signal; returns the exit code."""

    def start() -> None:
        given = sys.argv[1:] if arguments is None else arguments
        settings = load_settings(SchedulerSettings, given)
        configure_logging(settings.log_level, settings.log_format, settings.section)
        run_service(lambda: serve(settings))

    return run_or_explain("optimist scheduler", start)


if __name__ == "__main__":
    sys.exit(main())
