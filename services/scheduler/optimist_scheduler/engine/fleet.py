"""The workers of one scheduler, as they come, go and are lost."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import to_bytes
from optimist_common.network.endpoints import Change, Endpoints, Peer
from optimist_common.observing.tracing import OFF, Tracer
from optimist_common.scheduler_service.servicer import UnreachedError
from optimist_common.scheduler_service.stream import GatewayStream
from optimist_scheduler.core.base.values import FinishReason
from optimist_scheduler.core.requests.ends import make_end
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.core.results.check import ResultError
from optimist_scheduler.engine.engine import Engine
from optimist_scheduler.gateways.commands import Commands
from optimist_scheduler.gateways.delivery import Delivery
from optimist_scheduler.journal import Journal
from optimist_scheduler.observing import metrics
from optimist_scheduler.observing.request_watch import RequestWatch
from optimist_scheduler.proposers.proposers import Proposers
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import WorkerDescription, find_mismatch
from optimist_scheduler.workers.dispatcher import UNREACHED, Dispatcher
from optimist_scheduler.workers.link import WorkerLostError

logger = logging.getLogger(__name__)

LONGEST_LOOK_SECONDS = 1.0
"""Time between two looks for workers that hang."""
FAILED = "the scheduler has failed while it worked on this request; its log says why"
FAULT_PAUSE_SECONDS = 1.0
"""After an error of this process, before a worker is connected again."""


class Fleet:
    """Runs the requests of all gateways on all workers.

    What a lost worker had goes on at the others; without any it waits for the first that is there.
    """

    def __init__(self, settings: SchedulerSettings, tracer: Tracer = OFF) -> None:
        self._settings = settings
        self._watch = RequestWatch(tracer)
        self._journal = Journal(settings.replay_log, settings.replay_log_mib)
        self._journal.begin(settings.decisive)
        self.dispatcher = Dispatcher(self._journal)
        self._proposers = Proposers(
            settings, self.dispatcher.take_windows, self.dispatcher.find_unaligned
        )
        self._delivery = Delivery(self._proposers, self._watch)
        self._commands = Commands(self.dispatcher, self._delivery, self._proposers, self._watch)
        self.carry_out, self.close = self._commands.carry_out, self._commands.close
        self._endpoints = Endpoints(settings.workers)
        self._engines = {peer: self._new_engine(peer) for peer in self._endpoints.peers}
        self._runs: dict[Peer, asyncio.Task[None]] = {}
        self._tasks = asyncio.TaskGroup()
        self._reached = asyncio.Event()
        self._served: WorkerDescription | None = None
        """The worker that was reached last: the model that all requests are of."""

    @property
    def descriptions(self) -> list[WorkerDescription]:
        """The workers that are connected; without any, those that were."""
        members = self.dispatcher.members
        engines = [each for each in self._engines.values() if each in members]
        present = [each for each in engines if each.is_connected] or engines
        return [each.description for each in present if each.description is not None]

    @property
    def engines(self) -> list[Engine]:
        """Of all workers that are known."""
        return list(self._engines.values())

    def describe(self) -> scheduler_pb2.DescribeResponse:
        """Describes the model, what fits every worker, and the load."""
        descriptions = self.descriptions
        if not descriptions:
            raise UnreachedError(UNREACHED)
        first, dispatcher = descriptions[0], self.dispatcher
        configs = [each.config for each in descriptions]
        return scheduler_pb2.DescribeResponse(
            model=first.model,
            vocab_size=first.config.vocab_size,
            max_model_len=min(config.max_model_len for config in configs),
            kv_capacity_tokens=min(config.kv_capacity_tokens for config in configs),
            eos_token_ids=to_bytes(first.eos_token_ids),
            num_running=dispatcher.num_running,
            num_waiting=dispatcher.num_waiting,
            num_workers=dispatcher.num_workers,
            policy=scheduler_pb2.SchedulingPolicy.Value(
                f"SCHEDULING_POLICY_{first.config.policy.upper()}"
            ),
            max_draft_tokens=min(config.max_draft_tokens for config in configs),
        )

    def open(self) -> GatewayStream:
        """Returns the stream of a gateway."""
        if not self.descriptions:
            raise UnreachedError(UNREACHED)
        return self._delivery.open()

    async def until_reached(self) -> None:
        """Waits until the first worker was reached."""
        await self._reached.wait()

    def seconds_at_work(self) -> float:
        """Returns for how long no worker that is connected has answered a plan."""
        return min(
            (engine.seconds_at_work() for engine in self.engines if engine.is_connected),
            default=0.0,
        )

    async def run(self) -> NoReturn:
        """Runs for ever."""
        try:
            async with self._tasks:
                self._spawn(self._proposers.run())
                self._spawn(self._watch_for_hangs())
                for peer in self._engines:
                    self._start(peer)
                await self._endpoints.run(self._take_change)
        finally:
            for engine in self._engines.values():
                await engine.close()
            self._journal.close()
        raise AssertionError("a task group ended that has no end")

    def _new_engine(self, peer: Peer) -> Engine:
        return Engine(
            self._settings,
            peer,
            self._delivery,
            self._proposers,
            self._watch,
            self._commands.answer_pauses,
            self._journal,
        )

    def _start(self, peer: Peer) -> None:
        self._runs[peer] = self._spawn(self._run(self._engines[peer]))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a task of the fleet; whatever it fails with, the others go on."""

        async def survive() -> None:
            try:
                await work
            except Exception:
                logger.exception("a task of the scheduler has failed")

        return self._tasks.create_task(survive())

    async def _run(self, engine: Engine) -> None:
        """Keeps one worker at work for as long as its name resolves to it."""
        while engine.peer in self._endpoints.peers:
            try:
                await self._connect_and_run(engine)
            except Exception as error:
                self._fail(engine, error)
                await asyncio.sleep(FAULT_PAUSE_SECONDS)
        await self._let_go(engine)

    async def _connect_and_run(self, engine: Engine) -> None:
        """Runs a worker from a connection to its loss."""
        description = await engine.reach(self._check)
        self._begin(engine, description)
        try:
            await engine.run()
        except (WorkerLostError, ResultError) as error:
            self._lose(engine, error)

    def _check(self, description: WorkerDescription) -> None:
        """Raises ValueError for a worker that is not like those that are connected."""
        for engine in self.engines:
            if engine.is_connected and engine.description is not None:
                fault = find_mismatch(description, engine.description)
                if fault is not None:
                    raise ValueError(f"{fault} of the worker at {engine.peer.target}")

    def _begin(self, engine: Engine, description: WorkerDescription) -> None:
        """Lets a worker that was reached take what waits for one."""
        absent = [each for each in self.engines if each.has_scheduler and not each.is_connected]
        requests = self.dispatcher.evacuate(absent)
        fault = None if self._served is None else find_mismatch(description, self._served)
        self._served = description
        if fault is not None:
            self._give_up_model(absent, requests, f"{fault} of the one before")
            requests = []
        with self._ending_what_is_lost(requests):
            self._delivery.end(engine.begin(description))
            self.dispatcher.join(engine)
            self._delivery.end(self.dispatcher.adopt(requests))
        for each in absent:
            if each.peer not in self._endpoints.peers:
                self._spawn(self._let_go(each))
        self._reached.set()

    @contextmanager
    def _ending_what_is_lost(self, requests: list[Request]) -> Iterator[None]:
        """Ends those of some requests that no worker has after an error."""
        try:
            yield
        except Exception:
            lost = [each for each in requests if not self.dispatcher.has(each.request_id)]
            self._end_all(lost, FAILED)
            raise

    def _give_up_model(self, absent: list[Engine], requests: list[Request], fault: str) -> None:
        """Ends what was begun with a model that is served no longer, by a worker or a gateway."""
        reason = f"the worker was lost, and the next one serves another model: {fault}"
        logger.warning("%d requests end: %s", len(requests), reason)
        for each in absent:
            # Its sizes are of that model; it takes part again when it is reached.
            if each in self.dispatcher.members:
                self.dispatcher.leave(each)
        self._end_all(requests, reason)
        self._delivery.break_off(reason)

    def _end_all(self, requests: list[Request], reason: str) -> None:
        """Ends requests that no worker has."""
        ends = [
            make_end(each, len(each.token_ids), FinishReason.ERROR, reason) for each in requests
        ]
        self._delivery.end(ends)

    def _lose(self, engine: Engine, error: Exception) -> None:
        """Lets what a worker had go on elsewhere, or wait."""
        metrics.WORKER_LOSSES.inc()
        self._delivery.flush()
        engine.lose()
        num_others = self.dispatcher.num_workers
        requests = self.dispatcher.evacuate([engine])
        logger.warning(
            "lost the worker at %s, its %d requests %s: %s",
            engine.peer.target,
            len(requests),
            "go on at others" if num_others else "wait",
            error,
        )
        if number := sum(request.suspicion.must_run_alone for request in requests):
            logger.warning("%d of them may be why workers are lost: each runs alone", number)
        with self._ending_what_is_lost(requests):
            self._delivery.end(self.dispatcher.adopt(requests))
        self._commands.answer_pauses()

    def _fail(self, engine: Engine, error: Exception) -> None:
        """Ends what a worker had after an error of ours: what is known of it may be wrong."""
        metrics.INTERNAL_ERRORS.inc()
        target = engine.peer.target
        logger.error("the worker at %s is given up, and its requests end", target, exc_info=error)
        engine.lose()
        self._delivery.flush()
        if engine.has_scheduler:
            self._delivery.end(self.dispatcher.fail(engine, FAILED))
        self._commands.answer_pauses()

    def _take_change(self, change: Change) -> None:
        try:
            self._change(change)
        except Exception:
            logger.exception("workers that appeared or vanished cannot be taken note of")

    def _change(self, change: Change) -> None:
        """Takes workers in that appeared, and lets go of those that vanished and are lost."""
        for peer in change.appeared:
            run = self._runs.get(peer)
            if peer in self._engines and run is not None and not run.done():
                # It vanished only for a while, and works still.
                continue
            logger.info("a worker appeared at %s", peer.target)
            if peer not in self._engines:
                self._engines[peer] = self._new_engine(peer)
            self._start(peer)
        for peer in change.vanished:
            engine, run = self._engines.get(peer), self._runs.get(peer)
            logger.info("the name of the worker at %s does not resolve to it any more", peer.target)
            if engine is not None and run is not None and not engine.is_connected:
                run.cancel()
                self._spawn(self._cancelled(engine, run))

    async def _cancelled(self, engine: Engine, run: asyncio.Task[None]) -> None:
        """Lets a worker go whose run was cancelled, unless it has come back meanwhile."""
        await asyncio.gather(run, return_exceptions=True)
        if engine.peer in self._endpoints.peers and self._engines.get(engine.peer) is engine:
            self._start(engine.peer)
        else:
            await self._let_go(engine)

    async def _let_go(self, engine: Engine) -> None:
        """Forgets a worker; one that alone has requests keeps them until there is another.

        Several workers that were reached may ask for it, and its name may be back meanwhile.
        """
        if engine.peer in self._endpoints.peers or self._engines.get(engine.peer) is not engine:
            return
        if engine in self.dispatcher.members:
            if len(self.dispatcher.members) == 1:
                return
            requests = self.dispatcher.evacuate([engine])
            self.dispatcher.leave(engine)
            with self._ending_what_is_lost(requests):
                self._delivery.end(self.dispatcher.adopt(requests))
        del self._engines[engine.peer]
        await engine.close()

    async def _watch_for_hangs(self) -> NoReturn:
        """Gives up workers that answer no plan, while there are others."""
        longest = self._settings.hang_seconds
        while True:
            await asyncio.sleep(min(longest / 4, LONGEST_LOOK_SECONDS))
            present = [each for each in self.engines if each.is_connected]
            hanging = [each for each in present if each.seconds_at_work() > longest]
            if len(hanging) < len(present):
                for engine in hanging:
                    engine.give_up(f"it has answered no plan for {longest:g} seconds")
