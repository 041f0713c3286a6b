"""Starts the worker: `python -m optimist_worker --model DIRECTORY`."""

import os
import sys

from optimist_common.errors import run_or_explain
from optimist_common.model_files.directory import check_model, check_tokenizer
from optimist_common.network.server import require_free, run_service
from optimist_common.observing.logs import configure_logging
from optimist_common.settings import load_settings
from optimist_worker.execution.ranks import LocalRanks, Ranks, find_ranks, run_local_ranks
from optimist_worker.settings import WorkerSettings, check_ranks


def main(arguments: list[str] | None = None) -> int:
    """Serves until a signal; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    code = 0

    def start() -> None:
        nonlocal code
        settings = load_settings(WorkerSettings, words)
        ranks = find_ranks(
            os.environ,
            settings.tensor_parallel_size,
            settings.pipeline_parallel_size,
            settings.master_port,
        )
        level = settings.log_level
        if isinstance(ranks, Ranks) and not ranks.is_leader and level == "info":
            # All ranks would say the same.
            level = "warning"
        configure_logging(level, settings.log_format, settings.section)
        if not isinstance(ranks, Ranks):
            # Before torch is imported, and once for all ranks.
            check_model(settings.model, "--model", needs_weights=not settings.dummy_weights)
            check_tokenizer(settings.model, "--model")
        if isinstance(ranks, LocalRanks):
            check_ranks(settings, ranks.master_host)
            if ranks.first_rank == 0:
                require_free(settings.host, settings.port)
            code = run_local_ranks(ranks, words)
        # The process that only starts ranks has no use for torch.
        elif ranks is not None:
            from optimist_worker.service.rank import run_rank

            run_rank(settings, ranks)
        else:
            from optimist_worker.service.process import load_worker, serve

            # Before the weights are loaded, which may take minutes.
            require_free(settings.host, settings.port)
            loaded = load_worker(settings)
            run_service(lambda: serve(settings, loaded))

    return run_or_explain("optimist worker", start) or code


if __name__ == "__main__":
    sys.exit(main())
