"""Where Optimist keeps the files of a user."""

from collections.abc import Mapping
from pathlib import Path


def home_directory(environment: Mapping[str, str]) -> Path:
    """Returns OPTIMIST_HOME, which is `~/.optimist` if it is not set."""
    return Path(environment.get("OPTIMIST_HOME") or "~/.optimist").expanduser()
