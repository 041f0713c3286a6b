"""The end of a process whose other ranks are gone."""

import logging
import os
import sys
from typing import NoReturn

from optimist_common.errors import SetupError, run_or_explain

logger = logging.getLogger(__name__)

EXIT_CODE = 1


def end_process(reason: str) -> NoReturn:
    """Ends the process at once, for a supervisor to start it again.

    Threads may be waiting for other ranks inside a collective operation, which nothing but the end
    of the process interrupts.
    """
    logger.critical("%s; the worker ends", reason)
    _exit(EXIT_CODE)


def refuse_start(error: SetupError | None) -> NoReturn:
    """Ends a process that cannot start as `run_or_explain` does; None: all has been said."""

    def start() -> None:
        if error is not None:
            raise error

    run_or_explain("optimist worker", start)
    _exit(2)


def _exit(code: int) -> NoReturn:
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)
