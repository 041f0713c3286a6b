"""All schedulers of a gateway: where requests go, and go on when a scheduler is lost."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.network.channel import Tls
from optimist_common.network.endpoints import Change, Endpoints, Peer
from optimist_gateway.core.schedulers import (
    Candidate,
    ModelDescription,
    choose,
    common_description,
    find_difference,
)
from optimist_gateway.observing.metrics import MODEL
from optimist_gateway.schedulers.client import SchedulerClient
from optimist_gateway.schedulers.requests import (
    UNREACHED,
    ScheduledRequest,
    SchedulerUnavailableError,
    WaitingRoom,
)

logger = logging.getLogger(__name__)

STATS_INTERVAL_SECONDS = 1.0


class SchedulerPool:
    """A stream to each scheduler; a request is at one of them, or waits for one."""

    def __init__(
        self,
        addresses: Sequence[str],
        max_num_requests: int,
        resume_seconds: float,
        tls: Tls | None = None,
    ) -> None:
        """Sets up a pool, not connected until `run` is; the parameters are those of the settings.

        How many requests run at most bounds the commands that wait.
        """
        self._endpoints = Endpoints(addresses)
        self._max_num_requests, self.tls = max_num_requests, tls
        self._clients: dict[Peer, SchedulerClient] = {}
        self._tasks: dict[Peer, asyncio.Task[None]] = {}
        self._room = WaitingRoom(resume_seconds, self._give_up)
        self._description: ModelDescription | None = None
        self.num_resumed = 0
        """How often a request went on at another scheduler, or at one that was back."""

    @property
    def description(self) -> ModelDescription:
        """What holds at all schedulers; raises SchedulerUnavailableError without any."""
        if not self.connected or self._description is None:
            raise SchedulerUnavailableError(UNREACHED)
        return self._description

    @property
    def clients(self) -> list[SchedulerClient]:
        """The schedulers."""
        return list(self._clients.values())

    @property
    def is_hung(self) -> bool:
        """Whether the engine of every scheduler that is connected is stuck."""
        hung = [client.health.is_hung for client in self.connected]
        return bool(hung) and all(hung)

    @property
    def connected(self) -> list[SchedulerClient]:
        """The schedulers that are connected."""
        return [client for client in self._clients.values() if client.description is not None]

    @property
    def num_waiting(self) -> int:
        """Requests that have lost their scheduler and wait for one."""
        return len(self._room)

    def add(self, add: scheduler_pb2.Add) -> ScheduledRequest:
        """Sends a request to a scheduler; its handle is set here.

        Raises SchedulerUnavailableError if none is connected, or none takes more commands.
        """
        request = ScheduledRequest(add, self._abort)
        client = self._choose(request)
        if client is None:
            too_slow = "the scheduler does not take commands fast enough"
            raise SchedulerUnavailableError(too_slow if self.connected else UNREACHED)
        client.start(request)
        return request

    def set_waiting_priority(self, name: str, priority: int) -> int:
        """Changes how urgent requests of a name are that wait for a scheduler; returns how many."""
        named = [request for request in self._room.requests if name in request.add.names]
        for request in named:
            request.add.priority = priority
        return len(named)

    def break_off(self, error: Exception) -> None:
        """Ends all requests with an error, which their readers get after what has arrived."""
        for client in self.clients:
            for request in client.requests:
                client.abort(request)
                request.fail(error)
        for request in self._room.requests:
            self._room.leave(request)
            request.fail(error)

    async def run(self) -> None:
        """Follows all schedulers; returns never."""
        async with asyncio.TaskGroup() as tasks:

            def follow(change: Change) -> None:
                self._change(change, tasks)

            follow(Change(appeared=self._endpoints.peers))
            tasks.create_task(self._endpoints.run(follow))
            while True:
                await asyncio.sleep(STATS_INTERVAL_SECONDS)
                self._forget_retired()
                for client in self.clients:
                    client.ask_stats()
                if self._room:
                    # Schedulers that had no room may have some.
                    self._settle()

    def _find_fault(self, client: SchedulerClient, description: ModelDescription) -> str | None:
        """Returns why a scheduler cannot be used beside the others; None if it can."""
        others = (other.description for other in self.clients if other is not client)
        known = next((one for one in others if one is not None), None)
        if known is None and self._room:
            # What waits here was begun with another model.
            known = self._description
        if known is None or (difference := find_difference(known, description)) is None:
            return None
        return f"it serves another model than the others: {difference}"

    def _settle(self) -> None:
        """Moves requests without a good scheduler to the best there is now."""
        self._update_description()
        for client in self.clients:
            if client.is_to_be_left:
                self._empty(client)
        for request in self._room.requests:
            request.refused_by.clear()
            if (chosen := self._choose(request)) is not None:
                self._room.leave(request)
                self._resume(request, chosen)

    def _lose(self, requests: list[ScheduledRequest]) -> None:
        """Lets the requests of a scheduler that was lost go on elsewhere, or wait."""
        self._update_description()
        for request in requests:
            request.was_lost = True
            if not request.may_go_on():
                self._give_up(request)
            elif (chosen := self._choose(request)) is not None:
                self._resume(request, chosen)
            else:
                self._room.enter(request)

    def _defer(self, request: ScheduledRequest) -> bool:
        """Takes a request that a scheduler had no room for; returns False if it ends so."""
        if request.is_ending:
            return False
        others = [other for other in self.clients if other.peer.target not in request.refused_by]
        if (chosen := self._choose(request, others)) is not None:
            chosen.start(request)
            return True
        if not request.was_lost:
            return False
        self._room.enter(request)
        return True

    def _choose(
        self, request: ScheduledRequest, among: Iterable[SchedulerClient] | None = None
    ) -> SchedulerClient | None:
        """Returns the best scheduler for a request; None if none takes it."""
        fit = [
            client for client in (self.clients if among is None else among) if client.takes(request)
        ]
        if len(fit) < 2:
            return fit[0] if fit else None
        candidates = [
            Candidate(one.peer.target, one.load, one.capacity, one.is_sound) for one in fit
        ]
        return fit[choose(candidates, request.prefix, request.name)]

    def _resume(self, request: ScheduledRequest, client: SchedulerClient) -> None:
        self.num_resumed += 1
        client.start(request)

    def _empty(self, client: SchedulerClient) -> None:
        """Moves the requests of a scheduler to others, if there are sound ones."""
        others = [other for other in self.clients if other is not client and other.is_sound]
        for request in client.requests:
            if request.is_ending or (chosen := self._choose(request, others)) is None:
                continue
            client.abort(request)
            request.was_lost = True
            self._resume(request, chosen)

    def _abort(self, request: ScheduledRequest, *, wants_finished: bool = False) -> None:
        """Ends a request wherever it is; does nothing if it has ended."""
        request.is_ending = True
        if self._room.leave(request):
            if wants_finished:
                self._give_up(request)
            return
        for client in self._clients.values():
            if client.abort(request, wants_finished=wants_finished):
                return

    def _give_up(self, request: ScheduledRequest) -> None:
        reason = "the scheduler went away while it worked on this"
        request.fail(SchedulerUnavailableError(reason))

    def _update_description(self) -> None:
        known = (client.description for client in self.clients)
        common = common_description(one for one in known if one is not None)
        self._description = common or self._description

    def _change(self, change: Change, tasks: asyncio.TaskGroup) -> None:
        for peer in change.appeared:
            if peer in self._clients:
                self._clients[peer].is_retired = False
                continue
            client = SchedulerClient(
                peer,
                self._max_num_requests,
                self.tls,
                find_fault=self._find_fault,
                on_change=self._settle,
                on_lost=self._lose,
                on_refused=self._defer,
            )
            self._clients[peer] = client
            self._tasks[peer] = tasks.create_task(client.run())
        for peer in change.vanished:
            self._clients[peer].is_retired = True
        self._forget_retired()

    def _forget_retired(self) -> None:
        """Ends the streams of schedulers that are named no more and have nothing to do."""
        connected = self.connected
        has_others = not all(client.is_retired for client in connected)
        for client in self.clients:
            is_lost = client not in connected
            if client.is_retired and not client.requests and (is_lost or has_others):
                logger.info("the scheduler at %s is named no more", client.peer.target)
                del self._clients[client.peer]
                self._tasks.pop(client.peer).cancel()


class SchedulerCollector(Collector):
    """Reads the pool of each model whenever metrics are read."""

    def __init__(self, pools: Mapping[str, SchedulerPool]) -> None:
        """Takes the schedulers of models by the models' names."""
        self._pools = pools

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics."""
        yield self._each(
            "connected",
            "Whether the scheduler is connected, 1 or 0",
            lambda client: float(client.description is not None),
        )
        yield self._each(
            "sound",
            "Whether the scheduler works as far as is known, 1 or 0; others get requests last",
            lambda client: float(client.description is not None and client.is_sound),
        )
        yield self._each(
            "requests",
            "Requests of this gateway that are at the scheduler",
            lambda client: float(len(client.requests)),
        )
        waiting = GaugeMetricFamily(
            "optimist_gateway_requests_without_scheduler",
            "Requests that lost their scheduler and wait for one to go on at",
            labels=[MODEL],
        )
        resumed = CounterMetricFamily(
            "optimist_gateway_requests_resumed",
            "How often a request that lost its scheduler went on at another, or when it was back",
            labels=[MODEL],
        )
        for model, pool in self._pools.items():
            waiting.add_metric([model], pool.num_waiting)
            resumed.add_metric([model], pool.num_resumed)
        yield waiting
        yield resumed

    def _each(self, name: str, text: str, value: Callable[[SchedulerClient], float]) -> Metric:
        name = f"optimist_gateway_scheduler_{name}"
        family = GaugeMetricFamily(name, text, labels=[MODEL, "scheduler"])
        for model, pool in self._pools.items():
            for client in pool.clients:
                family.add_metric([model, client.peer.target], value(client))
        return family
