"""Log lines of every service, on standard error."""

import logging


def configure_logging(level: str) -> None:
    """Sends log records of `level` and above to standard error, a line each."""
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
