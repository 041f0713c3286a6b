"""One worker and its requests; what happens to them is in the journal."""

from optimist.scheduler.v1 import journal_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.network.endpoints import Peer
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.requests.table import Request
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.values.output import Ended, StepOutputs
from optimist_scheduler.journal.journal import OFF, Journal
from optimist_scheduler.workers.description import WorkerDescription
from optimist_scheduler.workers.translate import plan_message

_LOST = journal_pb2.JournalLost()
_PREPARED = journal_pb2.JournalPrepared()
_SCHEDULED = journal_pb2.JournalScheduled()
_CLOSED = journal_pb2.JournalClosed()


class Worker:
    """A worker that was not reached yet; it has a scheduler from when it is."""

    def __init__(self, peer: Peer, journal: Journal = OFF) -> None:
        """Sets up a worker without requests.

        Args:
            peer: Where it is.
            journal: Where what happens to its requests is recorded.
        """
        self.peer = peer
        self._journal = journal
        self._scheduler: Scheduler | None = None
        self.description: WorkerDescription | None = None
        """The worker, as it was when it was last reached; None before."""
        self.is_connected = False
        """Whether the worker takes plans."""

    @property
    def scheduler(self) -> Scheduler:
        """Its requests; raises LookupError before `begin`."""
        if self._scheduler is None:
            raise LookupError(f"the worker at {self.peer.target} has not been reached")
        return self._scheduler

    @property
    def has_scheduler(self) -> bool:
        """Whether the worker has ever been reached."""
        return self._scheduler is not None

    def wake(self) -> None:
        """Looks for something new to do."""

    def begin(self, description: WorkerDescription) -> list[Ended]:
        """Begins anew with a worker that was reached; returns the ends of what does not fit it."""
        self.description, self.is_connected = description, True
        return self._journal.record(
            lambda: self._begin(description),
            worker=self.peer.target,
            reached=description.message,
        )

    def _begin(self, description: WorkerDescription) -> list[Ended]:
        arguments = description.config, description.costs, description.drafter_us
        if self._scheduler is not None:
            return self._scheduler.restart(*arguments)
        self._scheduler = Scheduler(*arguments)
        return []

    def evacuate(self) -> list[Request]:
        """Gives all requests away: the worker is lost."""
        return self._journal.record(self.scheduler.evacuate, worker=self.peer.target, lost=_LOST)

    def prepare(self) -> None:
        """Computes the next plan ahead."""
        self._journal.record(self.scheduler.prepare, worker=self.peer.target, prepared=_PREPARED)

    def schedule(self, now: float) -> worker_pb2.ExecuteRequest | None:
        """Returns the next plan; None if nothing can run, or had better wait."""
        return self._journal.record(
            lambda: self._schedule(now), worker=self.peer.target, now=now, scheduled=_SCHEDULED
        )

    def _schedule(self, now: float) -> worker_pb2.ExecuteRequest | None:
        plan = self.scheduler.schedule(now)
        return None if plan is None else plan_message(plan)

    def settle(self, result: StepResult, message: worker_pb2.ExecuteResponse) -> StepOutputs:
        """Takes a result; raises ResultError if it fits no plan.

        Args:
            result: What `message` says.
            message: As the worker sent it.
        """
        return self._journal.record(
            lambda: self.scheduler.settle(result), worker=self.peer.target, result=message
        )

    def end_journal(self) -> None:
        """Records the totals: nothing more of this worker comes."""
        if self._scheduler is not None:
            stats = self._scheduler.stats
            self._journal.record(lambda: stats, worker=self.peer.target, closed=_CLOSED)
