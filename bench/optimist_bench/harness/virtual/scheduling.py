"""The scheduler in virtual time: the turns of its engine's loop, each a job or two."""

from collections import deque
from collections.abc import Callable
from functools import partial

from optimist.worker.v1 import worker_pb2
from optimist_bench.harness.virtual.proposing import Batch, Link, Links, read_window
from optimist_bench.harness.virtual.settings import VirtualSettings
from optimist_bench.harness.virtual.timeline import Cores, Service, Timeline
from optimist_proposer.core.messages import Answer
from optimist_scheduler.core.base.values import StepOutputs
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.proposers.waits import PASS_MEMORY, Wait, WindowWaits, find_slack
from optimist_scheduler.workers.translate import plan_message, step_result

SETTLED, SCHEDULED, DELIVERED = 0.5, 0.3, 0.2
"""Shares of a step's time until its result is settled, from there until a plan is out, and of
what is done while that runs: outputs are sent, the next decision is prepared."""


class Engine(Service):
    """The loop of `optimist_scheduler.engine.engine`, and what gateways and proposers send it."""

    def __init__(
        self,
        timeline: Timeline,
        cores: Cores,
        settings: VirtualSettings,
        scheduler: Scheduler,
        links: Links,
    ) -> None:
        super().__init__(timeline, cores)
        self._costs, self._scheduler, self._links = settings, scheduler, links
        self.waits = WindowWaits(settings.wait_ms / 1000, pays_always=settings.wait == "always")
        self.wait_seconds: list[float] = []
        """How long each wait was."""
        self._wait: tuple[float, Wait] | None = None
        """When the present wait began, in microseconds, and what it is."""
        self.run_plan: Callable[[worker_pb2.ExecuteRequest], None]
        """Takes plans when they have reached the worker."""
        self.deliver: Callable[[StepOutputs], None]
        """Takes outputs when they have reached whose requests these are."""
        self.num_windows = 0
        self._results: deque[worker_pb2.ExecuteResponse] = deque()
        self._held: list[StepOutputs] = []
        self._pass_seconds = 0.0
        self._pass_since = 0.0
        """When the last result came, or the plan was sent that is waited for, in microseconds."""
        self._has_news, self._rests = False, True
        self._flushes_soon = False

    def add(self, new: NewRequest) -> None:
        """Takes a request that has arrived."""
        self.spend(self._costs.message_us)
        self._flush()
        self._scheduler.add(new, self.time / 1e6)
        if new.is_followed:
            self._links.open(new)
            self._send_batches_soon()
        self._wake()

    def take_result(self, response: worker_pb2.ExecuteResponse) -> None:
        """Takes a result that has arrived."""
        self._results.append(response)
        if self._wait is not None:
            self._look_again(self._wait)
        self._wake()

    @property
    def num_plans(self) -> int:
        """Plans that were sent."""
        return self._scheduler.stats.num_plans

    def _take_answer(self, link: Link, batch: Batch, answer: Answer) -> None:
        link.take_answer(batch.number)
        self.spend(self._costs.message_us + self._costs.window_us * len(answer.windows))
        for request_id in answer.refusals:
            self._links.close(request_id)
        windows = [(request_id, read_window(sent)) for request_id, sent in answer.windows.items()]
        self._scheduler.set_windows(windows)
        self.num_windows += len(answer.windows)
        if self._wait is not None:
            self.ask(partial(self._look_again, self._wait))
        self._send_batches_soon()

    def _wake(self) -> None:
        if self._rests:
            self._rests = False
            self.ask(self._settle)
        else:
            self._has_news = True

    def _settle(self) -> None:
        """Settles what has come, and begins a turn of the loop."""
        self._has_news = False
        while self._results:
            result = step_result(self._results.popleft())
            self._pass_since = self.time
            self._pass_seconds += (result.step_ns / 1e9 - self._pass_seconds) * PASS_MEMORY
            self._spend_step(SETTLED, len(result.slots))
            self._held.append(self._scheduler.settle(result))
        self._plan_next()

    def _plan_next(self) -> None:
        """Waits for windows if that pays, then sends the next plan."""
        slack_seconds = 0.0
        if self._scheduler.num_plans_in_flight:
            slack_seconds = find_slack(self._pass_seconds, (self.time - self._pass_since) / 1e6)
        if self._scheduler.can_send and self._is_worth_a_wait(slack_seconds):
            # The proposers have to see the last tokens to answer them.
            self._flush()
            if self._find_awaited():
                self._wait = self.time, self.waits.begin(slack_seconds)
                look_again = partial(self._look_again, self._wait, is_over=True)
                self.send(1e6 * self._wait[1].timeout, partial(self.ask, look_again))
                return
        self._send_plan()

    def _is_worth_a_wait(self, slack_seconds: float) -> bool:
        if self._links.are_late:
            return False
        scheduler = self._scheduler
        num_lacking = self._links.count_lacking(scheduler.find_unaligned())
        return self.waits.pays(
            num_lacking, scheduler.num_running, self._pass_seconds, slack_seconds
        )

    def _look_again(self, begun: tuple[float, Wait], *, is_over: bool = False) -> None:
        """Ends a wait if no answer is due any more, its time is over or the worker is idle."""
        awaited, (started, wait) = self._find_awaited(), begun
        is_idle = self._scheduler.num_plans_in_flight <= len(self._results)
        goes_on = awaited and not is_over and not (wait.costs_nothing and is_idle)
        if self._wait is not begun or goes_on:
            return
        for link in awaited if is_over else ():
            # Not waited for again before it answers anything.
            link.is_late = True
        seconds, self._wait = (self.time - started) / 1e6, None
        # The worker loses nothing while no time passes.
        is_idle = seconds > 0 and is_idle
        self.waits.note(wait, seconds, is_over=is_over, is_in_vain=bool(awaited), is_idle=is_idle)
        self.wait_seconds.append(seconds)
        self._send_plan()

    def _find_awaited(self) -> list[Link]:
        return self._links.find_awaited(self._scheduler.find_unaligned())

    def _send_plan(self) -> None:
        """Sends the next plan, if there is one, and then looks for another."""
        plan = self._scheduler.schedule(self.time / 1e6)
        if plan is None:
            self._finish_turn()
            return
        self._spend_step(SCHEDULED, len(plan.slots))
        if self._scheduler.num_plans_in_flight == 1:
            self._pass_since = self.time
        self.send(self._costs.wire_us, partial(self.run_plan, plan_message(plan)))
        self.ask(self._plan_next)

    def _finish_turn(self) -> None:
        """Does what needs not be done before a plan is out, and rests until there are news."""
        self._flush()
        self._scheduler.prepare()
        if self._has_news:
            self._settle()
        else:
            self._rests = True

    def _flush(self) -> None:
        """Sends the outputs that are held to proposers and to whose they are."""
        held, self._held = self._held, []
        for outputs in held:
            self._spend_step(DELIVERED, len(outputs.handles))
            self._links.observe(outputs.observed, set(self._scheduler.find_unaligned()))
            self._send_batches()
            for ended in outputs.ended:
                self._links.close(ended.request_id)
                self._send_batches_soon()
            self.send(self._costs.wire_us, partial(self.deliver, outputs))

    def _send_batches_soon(self) -> None:
        if not self._flushes_soon:
            self._flushes_soon = True
            self.ask(self._send_batches)

    def _send_batches(self) -> None:
        self._flushes_soon = False
        wire_us = self._costs.wire_us
        for link, batch in self._links.make_batches():
            self.spend(self._costs.message_us)
            answer = partial(link.proposer.answer, batch, partial(self._receive, link, batch))
            self.send(wire_us, partial(link.proposer.ask, answer))

    def _receive(self, link: Link, batch: Batch, answer: Answer) -> None:
        self.ask(partial(self._take_answer, link, batch, answer))

    def _spend_step(self, share: float, num_rows: int) -> None:
        self.spend(share * (self._costs.step_us + self._costs.row_us * num_rows))
