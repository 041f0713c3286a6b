"""`optimist engine MODEL`: vLLM as a scheduler with its workers, in vLLM's own environment."""

import os
import sys

from optimist_common.errors import SetupError
from optimist_common.settings import split_flags

_FLAG = "--engine-python"


def main(arguments: list[str]) -> int:
    """Becomes the engine, by the Python that --engine-python names; returns only if it cannot."""
    own, flags = split_flags(arguments)
    python = sys.executable
    if _FLAG in own:
        index = own.index(_FLAG)
        if index + 1 == len(own):
            raise SetupError(f"{_FLAG}: name the Python of vLLM's environment")
        python = own[index + 1]
        del own[index : index + 2]
    command = [python, "-m", "optimist_vllm.engine", *own, *(["--", *flags] if flags else [])]
    try:
        os.execvp(python, command)  # noqa: S606
    except OSError as error:
        raise SetupError(f"{_FLAG}: cannot start {python}: {error.strerror}") from None
