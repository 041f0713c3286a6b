"""Carries out what gateways ask for, and answers it: pauses once nothing runs any more."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from time import monotonic

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.scheduler_service.fields import MalformedError, read_names, read_pause_mode
from optimist_common.scheduler_service.pauses import Pauses
from optimist_common.scheduler_service.stream import GatewayStream
from optimist_scheduler.core.base.values import Ended, Finished, FinishReason, RejectionError
from optimist_scheduler.core.requests.request import MAX_PRIORITY
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.gateways.delivery import Delivery
from optimist_scheduler.observing import metrics
from optimist_scheduler.observing.request_watch import RequestWatch
from optimist_scheduler.proposers.proposers import Proposers
from optimist_scheduler.proposers.waits import WindowWaits
from optimist_scheduler.workers.dispatcher import Dispatcher
from optimist_scheduler.workers.translate import new_request

_TOTALS = (
    "num_plans",
    "num_preschedule_hits",
    "num_preschedule_repairs",
    "num_prescheduled_rows",
    "num_preemptions",
    "num_prefix_queries",
    "num_prefix_hits",
)
"""What has the same name in the message."""
_REPAIRED = ("num_dropped_rows", "num_recomputed_rows", "num_added_rows")


class Commands:
    """The commands of all gateways.

    They take effect when they arrive, also while the worker computes; what is in flight does not
    change by them.
    """

    def __init__(
        self, dispatcher: Dispatcher, delivery: Delivery, proposers: Proposers, watch: RequestWatch
    ) -> None:
        self._dispatcher, self._delivery = dispatcher, delivery
        self._proposers, self._watch = proposers, watch
        self._pauses = Pauses(dispatcher, self._answer_pause)
        self.answer_pauses = self._pauses.answer
        delivery.on_slow = self.close

    def carry_out(self, stream: GatewayStream, command: scheduler_pb2.ConnectRequest) -> None:
        """Carries out one command of a stream and answers it; a pause is answered later."""
        # Nothing of a request is sent after its end.
        self._delivery.flush()
        try:
            reply = self._dispatch(stream, command)
        except MalformedError as error:
            reply = scheduler_pb2.Reply(error=str(error))
        if reply is not None:
            reply.command_id = command.command_id
            self._delivery.reply(stream, reply)
        self.answer_pauses()
        self._dispatcher.wake()

    def close(self, stream: GatewayStream) -> None:
        """Aborts all requests of a stream and takes its pending pauses back."""
        for handle in list(stream.request_ids):
            self._delivery.note(self._end(stream, handle))
        self._delivery.remove(stream)
        self._pauses.withdraw(stream)
        self._dispatcher.wake()

    def _dispatch(
        self, stream: GatewayStream, command: scheduler_pb2.ConnectRequest
    ) -> scheduler_pb2.Reply | None:
        kind = command.WhichOneof("command")
        if kind == "add":
            return self._add(stream, command.add)
        if kind == "abort":
            return self._abort(stream, command.abort)
        if kind == "pause":
            return self._pause(stream, command.pause, command.command_id)
        if kind == "resume":
            self._pauses.resume()
            return scheduler_pb2.Reply()
        if kind == "set_priority":
            return self._set_priority(stream, command.set_priority)
        if kind == "get_stats":
            return scheduler_pb2.Reply(
                stats=stats_message(
                    self._dispatcher.schedulers,
                    self._proposers.waits,
                    self._dispatcher.num_workers,
                    self._dispatcher.num_moved,
                )
            )
        raise MalformedError("command: is not set")

    def _add(self, stream: GatewayStream, add: scheduler_pb2.Add) -> scheduler_pb2.Reply:
        """Adds a request; one that cannot be added gets its end at once."""
        if add.handle in stream.request_ids:
            raise MalformedError(f"add.handle: {add.handle} is in use")
        try:
            new, names, now = new_request(add, stream.owner), read_names(add), monotonic()
            new = replace(new, is_followed=self._proposers.follows(new))
            self._dispatcher.add(new, now, add)
        except MalformedError as error:
            finished = Finished(FinishReason.REFUSED, str(error))
        except RejectionError as error:
            finished = error.finished
        else:
            stream.request_ids[new.handle] = new.request_id
            stream.names[new.handle] = names
            self._watch.add(new, add.trace_parent, now)
            if new.is_followed:
                self._proposers.open(add, self._watch.trace_parents.get(new.request_id, ""))
            return scheduler_pb2.Reply()
        self._delivery.reject(stream, add.handle, finished)
        return scheduler_pb2.Reply(error=finished.message)

    def _abort(self, stream: GatewayStream, abort: scheduler_pb2.Abort) -> scheduler_pb2.Reply:
        ended = self._end(stream, abort.handle)
        if abort.wants_finished:
            self._delivery.end(ended)
        else:
            self._delivery.note(ended)
        return scheduler_pb2.Reply()

    def _end(self, stream: GatewayStream, handle: int) -> list[Ended]:
        """Ends a request; returns its end, or nothing if it is unknown or has ended."""
        request_id = stream.request_ids.get(handle)
        finished = None if request_id is None else self._dispatcher.abort(request_id)
        if request_id is None or finished is None:
            return []
        return [Ended(stream.owner, handle, request_id, finished)]

    def _set_priority(
        self, stream: GatewayStream, change: scheduler_pb2.SetPriority
    ) -> scheduler_pb2.Reply:
        if abs(change.priority) > MAX_PRIORITY:
            raise MalformedError(
                f"set_priority.priority: must be from {-MAX_PRIORITY} to {MAX_PRIORITY}, "
                f"not {change.priority}"
            )
        if "fcfs" in {scheduler.config.policy for scheduler in self._dispatcher.schedulers}:
            raise MalformedError("set_priority.priority: has no effect with the policy fcfs")
        if change.name:
            return scheduler_pb2.Reply(num_requests=self._set_named_priority(stream, change))
        request_id = stream.request_ids.get(change.handle)
        if request_id is None or not self._dispatcher.set_priority(request_id, change.priority):
            raise MalformedError(f"set_priority.handle: no request {change.handle} runs or waits")
        return scheduler_pb2.Reply()

    def _set_named_priority(self, asker: GatewayStream, change: scheduler_pb2.SetPriority) -> int:
        """Changes all requests of a name and notifies their streams; returns their number."""
        number = 0
        for stream in self._delivery.streams:
            changes = [
                scheduler_pb2.SetPriority(handle=handle, priority=change.priority)
                for handle in stream.find(change.name)
                if self._dispatcher.set_priority(stream.request_ids[handle], change.priority)
            ]
            number += len(changes)
            if changes and stream is not asker:
                self._delivery.send(stream, scheduler_pb2.ConnectResponse(priorities=changes))
        return number

    def _pause(
        self, stream: GatewayStream, pause: scheduler_pb2.Pause, command_id: int
    ) -> scheduler_pb2.Reply | None:
        mode = read_pause_mode(pause)
        self._pauses.add(stream, command_id, mode)
        self._delivery.end(self._dispatcher.pause(mode))
        return None

    def _answer_pause(self, stream: GatewayStream, command_id: int, error: str) -> None:
        self._delivery.reply(stream, scheduler_pb2.Reply(command_id=command_id, error=error))


def stats_message(
    schedulers: Iterable[Scheduler], waits: WindowWaits, num_workers: int, num_moved: int
) -> scheduler_pb2.Stats:
    """Writes the figures; changes nothing."""
    drafts = metrics.DRAFTS.totals
    totals: Counter[str] = Counter()
    is_paused = False
    for scheduler in schedulers:
        is_paused = is_paused or scheduler.is_paused
        totals["num_running"] += scheduler.num_running
        totals["num_waiting"] += scheduler.num_waiting
        totals["num_free_blocks"] += scheduler.num_free_blocks
        totals["num_blocks"] += scheduler.config.num_blocks
        totals["num_plans_in_flight"] += scheduler.num_plans_in_flight
        stats = scheduler.stats
        for name in _TOTALS:
            totals[name] += getattr(stats, name)
        totals["num_preschedule_discards"] += stats.preschedule_discards.total()
        totals["num_repaired_rows"] += sum(getattr(stats, name) for name in _REPAIRED)
    return scheduler_pb2.Stats(
        is_paused=is_paused,
        num_window_waits=waits.num_waits,
        num_idle_window_waits=waits.num_idle,
        num_late_window_waits=waits.num_late,
        window_wait_us=round(waits.seconds * 1e6),
        num_drafts=drafts.num_rows,
        num_drafted_tokens=drafts.num_drafted,
        num_accepted_tokens=drafts.num_accepted,
        num_accepted_at_positions=drafts.num_accepted_at,
        num_workers=num_workers,
        num_moved_requests=num_moved,
        **totals,
    )
