"""One rank from its start to its end: rank 0 serves, the others follow."""

import logging
import os
import signal
import threading
import time
from typing import NoReturn

from optimist_common.errors import SetupError
from optimist_common.network.server import require_free, run_service
from optimist_worker.execution.group import Group, GroupError, Pulse, end_process, refuse_start
from optimist_worker.execution.ranks import Ranks
from optimist_worker.model.auto import choose_device
from optimist_worker.runner.cost import measure_costs
from optimist_worker.runner.runner import Runner
from optimist_worker.service.followers import follow
from optimist_worker.service.process import build_runner, limits_of, serve
from optimist_worker.settings import WorkerSettings, check_ranks

logger = logging.getLogger(__name__)

_SAY_SECONDS = 3.0
"""How long rank 0 stays for others that cannot start for the same reason."""
_JOIN_SECONDS = 0.2


def run_rank(settings: WorkerSettings, ranks: Ranks) -> None:
    """Serves or follows until the end.

    Raises:
        SetupError: It cannot join the others.
    """
    check_ranks(settings, ranks.master_host)
    device_type = choose_device(settings.device).type
    is_on_gpu = device_type == "cuda"
    device = f"cuda:{ranks.local_rank}" if is_on_gpu else device_type
    settings = settings.model_copy(update={"device": device})
    if not is_on_gpu:
        # transformers shares a model among the accelerators that it sees.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Of torchrun's; transformers reads it.
    os.environ.setdefault("LOCAL_RANK", str(ranks.local_rank))
    if ranks.is_leader:
        require_free(settings.host, settings.port)
    group = Group(ranks, device_type, settings.hang_seconds)
    pulse = Pulse(group)
    try:
        if ranks.is_leader:
            _lead(settings, group)
        else:
            _obey(settings, group, pulse)
    except SetupError as error:
        pulse.abandon()
        _explain(group, error)
    except GroupError as error:
        end_process(str(error))
    pulse.close()
    group.close()


def _lead(settings: WorkerSettings, group: Group) -> None:
    runner = build_runner(settings, group)
    costs = measure_costs(runner, settings.cost_seconds)
    try:
        run_service(lambda: serve(settings, runner, costs))
    finally:
        runner.engine.executor.end()


def _obey(settings: WorkerSettings, group: Group, pulse: Pulse) -> None:
    """Obeys on a thread of its own: the main thread takes signals."""
    runner = build_runner(settings, group)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: pulse.ask_to_end())
    thread = threading.Thread(
        target=_obey_or_end, args=(settings, group, runner), name="model", daemon=True
    )
    thread.start()
    while thread.is_alive():
        thread.join(_JOIN_SECONDS)


def _obey_or_end(settings: WorkerSettings, group: Group, runner: Runner) -> None:
    try:
        follow(group, runner, limits_of(settings, runner), settings.hang_seconds)
    except GroupError as error:
        end_process(str(error))
    except Exception as error:
        # Whatever it is, this rank does no longer what rank 0 does.
        logger.critical("rank %d cannot follow", group.ranks.rank, exc_info=error)
        end_process("a command has failed")


def _explain(group: Group, error: SetupError) -> NoReturn:
    """Ends this rank; says why if no other has said the same."""
    is_first = group.is_first_to_say(str(error))
    if group.ranks.is_leader:
        # It keeps the store, where the others find that this was said.
        time.sleep(_SAY_SECONDS)
    refuse_start(error if is_first else None)
