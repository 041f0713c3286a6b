"""Starts the engine: `python -m optimist_vllm.engine`, in the environment that has vLLM."""

import os
import sys

from optimist_common.errors import SetupError, run_or_explain
from optimist_common.network.server import run_service
from optimist_common.observing.logs import configure_logging
from optimist_common.settings import load_settings, split_flags
from optimist_vllm.engine.settings import EngineSettings


def main(arguments: list[str] | None = None) -> int:
    """Serves until a signal; returns the exit code."""

    def start() -> None:
        given = sys.argv[1:] if arguments is None else arguments
        given, flags = split_flags(given)
        settings = load_settings(EngineSettings, given)
        configure_logging(settings.log_level, settings.log_format, settings.section)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", settings.log_level.upper())
        try:
            from optimist_vllm.engine.serve import serve
        except ModuleNotFoundError as error:
            raise SetupError(
                f"{error.name} is not installed for {sys.executable}: name the Python of vLLM's "
                "environment by --engine-python, and install optimist-vllm[engine] there"
            ) from None
        run_service(lambda: serve(settings, flags))

    return run_or_explain("optimist engine", start)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # At the interpreter's own end, vLLM's libraries print pages about what they leak.
    os._exit(code)
