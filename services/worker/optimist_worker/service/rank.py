"""One rank from its start to its end: rank 0 serves, the others do what it has them do."""

import logging
import os
import signal
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NoReturn

from optimist.worker.v1 import worker_pb2
from optimist_common.errors import SetupError
from optimist_common.network.server import require_free, run_service
from optimist_worker.core.plan import Plan, PlanError, StepResult
from optimist_worker.execution.codec import decode_plan
from optimist_worker.execution.commands import DIGEST_BYTES, Command, digest
from optimist_worker.execution.group import Group, GroupError, Pulse, end_process, refuse_start
from optimist_worker.execution.ranks import Ranks
from optimist_worker.execution.stage import Stage, StagedStep
from optimist_worker.execution.stage_pass import read_verdict, write_verdict
from optimist_worker.model.loading import choose_device, take_device
from optimist_worker.runner.runner import LaunchedPlan, Runner
from optimist_worker.service.process import build_runner, load_worker, serve
from optimist_worker.settings import WorkerSettings, check_ranks

logger = logging.getLogger(__name__)

_SAY_SECONDS = 3.0
"""How long rank 0 stays for others that cannot start for the same reason."""
_JOIN_SECONDS = 0.2


def run_rank(settings: WorkerSettings, ranks: Ranks) -> None:
    """Serves or follows until the end; raises SetupError if it cannot join the others."""
    check_ranks(settings, ranks.master_host)
    device_type = choose_device(settings.device).type
    is_on_gpu = device_type == "cuda"
    device = f"cuda:{ranks.local_rank}" if is_on_gpu else device_type
    settings = settings.model_copy(update={"device": device})
    if is_on_gpu:
        take_device(device)
    else:
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
    loaded = load_worker(settings, group)
    try:
        run_service(lambda: serve(settings, loaded))
    finally:
        loaded.runner.engine.executor.end()


def _obey(settings: WorkerSettings, group: Group, pulse: Pulse) -> None:
    """Obeys on a thread of its own, see `load_worker`: the main thread takes signals."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
    runner = thread.submit(build_runner, settings, group).result()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: pulse.ask_to_end())
    following = thread.submit(_obey_or_end, settings, group, runner)
    while not following.done():
        wait([following], _JOIN_SECONDS)


def _obey_or_end(settings: WorkerSettings, group: Group, runner: Runner) -> None:
    try:
        follow(group, runner, settings.hang_seconds)
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


def follow(group: Group, runner: Runner, hang_seconds: float) -> None:
    """Does what rank 0 says, who may take some seconds over a step, until it says that it ends.

    Raises GroupError if another process is gone or came to something else.
    """
    _Follower(group, runner).run(hang_seconds)


class _Follower:
    """The plans of a rank or stage that have been launched and not been compared.

    A rank has a part of every layer. The last stage judges the drafts of a plan and settles it at
    once; the stages before it do when they are given its verdict.
    """

    def __init__(self, group: Group, runner: Runner) -> None:
        executor = runner.engine.executor
        self._group, self._runner = group, runner
        self._stage = executor if isinstance(executor, Stage) else None
        is_last = self._stage is not None and self._stage.position.is_last
        self._last = self._stage if is_last else None
        self._running: deque[LaunchedPlan | StepResult] = deque()

    def run(self, hang_seconds: float) -> None:
        """See `follow`."""
        receive = self._group.receive if self._stage is None else self._stage.link.next_command
        while True:
            # Where rank 0 has to compare a result soon, it is waited for some seconds.
            command = receive(hang_seconds if self._running else None)
            kind, payload = Command(command[0]), command[1:]
            if kind is Command.RELEASE_ALL:
                self._runner.release_all()
            elif kind is Command.LAUNCH:
                request = worker_pb2.ExecuteRequest.FromString(payload)
                self.launch(decode_plan(request, self._runner.engine.state.sizes))
            elif kind is Command.COLLECT:
                self.collect(payload[:DIGEST_BYTES], payload[DIGEST_BYTES:])
            else:
                break
        if self._last is not None:
            self._last.link.send_verdict(b"")
            self._last.link.forget_all()

    def launch(self, plan: Plan) -> None:
        try:
            launched = self._runner.launch(plan)
        except PlanError:
            # Rank 0 has met it too, reports it to the scheduler and collects nothing.
            return
        last = self._last
        self._running.append(launched if last is None else self._judge(last, launched))

    def collect(self, expected: bytes, verdict: bytes) -> None:
        """Compares the oldest plan's result with the digest of that of rank 0."""
        launched = self._running.popleft()
        if isinstance(launched, StepResult):
            _compare(launched, expected)
            return
        if verdict and self._stage is not None:
            if not isinstance(launched.step, StagedStep):
                number = launched.plan.sequence
                raise GroupError(f"plan {number} has a pass at another stage, but not here")
            launched.step.verdict = read_verdict(verdict)
            self._stage.link.forget_plan()
        result = self._runner.collect(launched)
        _compare(result, expected)
        if self._stage is None and result.errors:
            self._group.wait_for_all()

    def _judge(self, stage: Stage, launched: LaunchedPlan) -> StepResult:
        """Settles a plan at the last stage and sends its verdict."""
        step, verdict = launched.step, None
        if isinstance(step, StagedStep) and step.has_pass:
            verdict = step.verdict
        has_grammar, rows = launched.has_grammar, dict(launched.rows)
        if verdict is not None and not has_grammar:
            stage.link.send_verdict(write_verdict(verdict))
        result = self._runner.collect(launched)
        if verdict is not None and has_grammar:
            # Whether a grammar can be followed further is known when the tokens are committed.
            # That nothing may come next, when the result is read.
            faults = {slot: held.error for slot, held in rows.items() if held.has_grammar} | {
                slot: error for slot, error in result.errors.items() if slot in rows
            }
            verdict.faults = {slot: error for slot, error in faults.items() if error is not None}
            stage.link.send_verdict(write_verdict(verdict))
        return result


def _compare(result: StepResult, expected: bytes) -> None:
    if digest(result) != expected:
        reasons = "; ".join(result.errors.values())[:300]
        raise GroupError(
            f"plan {result.sequence} came to something else than on rank 0"
            + (f": {reasons}" if reasons else "")
        )
