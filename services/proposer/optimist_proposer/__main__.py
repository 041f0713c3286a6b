"""Starts the proposer: `python -m optimist_proposer --model DIRECTORY`."""

import sys

from optimist_common.errors import run_or_explain
from optimist_common.network.server import run_service
from optimist_common.observing.logs import configure_logging
from optimist_common.process import hide_torch
from optimist_common.settings import load_settings
from optimist_proposer.service import load_vocabulary, serve
from optimist_proposer.settings import ProposerSettings


def main(arguments: list[str] | None = None) -> int:
    """Serves until a signal; returns the exit code."""

    def start() -> None:
        settings = load_settings(ProposerSettings, sys.argv[1:] if arguments is None else arguments)
        configure_logging(settings.log_level, settings.log_format, settings.section)
        hide_torch()
        vocabulary = load_vocabulary(settings.model)
        run_service(lambda: serve(settings, vocabulary))

    return run_or_explain("optimist proposer", start)


if __name__ == "__main__":
    sys.exit(main())
