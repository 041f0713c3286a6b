"""A scheduler, its worker, and what is between them: plans sent, tokens and ends received."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from optimist.proposer.v1 import proposer_pb2
from optimist_common.columns import floats_to_bytes, to_bytes
from optimist_common.drafts import TokenTree
from optimist_common.sampling_message import write_sampling
from optimist_scheduler.core.base.values import (
    Ended,
    Finished,
    FinishReason,
    Int32Array,
    StepOutputs,
)
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.requests.table import RequestTable, SlotStatus
from optimist_scheduler.core.schedule import apply
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.width.costs import NO_TIMINGS, Timings
from optimist_scheduler.core.windows.window import MAX_NODES, Window
from optimist_scheduler.workers.dispatcher import Dispatcher
from optimist_scheduler.workers.translate import plan_message, step_result
from tests.scheduler.fake_worker import SIZES, FakeWorker, expected_output
from tests.scheduler.integrity import check_integrity

NOW = 0.0


def make_window(
    base: int, position: int, token_ids: Sequence[int], values: Sequence[float] = ()
) -> Window:
    """Returns a window that is a chain.

    Args:
        base: Output position of the first token.
        position: Its position in the predictions; -1 for none.
        token_ids: The chain.
        values: Chances of the nodes.
    """
    positions = [position + index if position >= 0 else -1 for index in range(len(token_ids))]
    parents = range(-1, len(token_ids) - 1)
    return window_of(base, list(zip(token_ids, parents, positions, strict=True)), values)


def window_of(
    base: int, nodes: Sequence[tuple[int, int, int]], values: Sequence[float] = ()
) -> Window:
    """Returns a window of nodes, each with its token, parent, and position in the predictions."""
    tokens, parents, positions = (np.array([node[i] for node in nodes], np.int32) for i in range(3))
    tree = TokenTree.from_columns(tokens, parents)
    return Window(base, tree, positions, np.array(values, np.float32))


def window_message(request_id: str, window: Window) -> proposer_pb2.Window:
    """Returns a window as proposers send it."""
    return proposer_pb2.Window(
        request_id=request_id,
        base=window.base,
        token_ids=to_bytes(window.tree.token_ids),
        parents=b"" if window.tree.parents is None else to_bytes(window.tree.parents),
        prediction_positions=to_bytes(np.maximum(window.positions, -1)),
        prompt_positions=to_bytes(np.maximum(-1 - window.positions, 0)),
        values=floats_to_bytes(window.values),
    )


def take_window(dispatcher: Dispatcher, message: proposer_pb2.Window) -> bool:
    """Takes one window; returns whether it is of use, raises if it never is."""
    return _raise_fault(*dispatcher.take_windows([message]))


def set_window(scheduler: Scheduler, request_id: str, window: Window) -> bool:
    """Sets one window; returns whether it is of use, raises if it never is."""
    return _raise_fault(*scheduler.set_windows([(request_id, window)]))


def _raise_fault(outcome: bool | ValueError) -> bool:
    if isinstance(outcome, ValueError):
        raise outcome
    return outcome


def ints(*values: int) -> Int32Array:
    return np.array(values, np.int32)


def config(**values: Any) -> EngineConfig:
    sizes: dict[str, Any] = {"vocab_size": 50, "max_model_len": 64, "block_size": 4}
    sizes |= {"num_blocks": 32, "max_num_seqs": 4, "max_num_batched_tokens": 16}
    sizes |= {"max_num_waiting": 8, "num_speculative_tokens": 4, "draft_width": "fixed"}
    return EngineConfig(**{**sizes, "max_plans_in_flight": 1, **values})


def rows(outputs: StepOutputs) -> dict[int, list[int]]:
    """Returns the new tokens by handle."""
    tokens = iter(outputs.token_ids.tolist())
    counts = outputs.num_tokens.tolist()
    return {
        handle: [next(tokens) for _ in range(count)]
        for handle, count in zip(outputs.handles.tolist(), counts, strict=True)
    }


class Collected:
    """Tokens and ends by handle."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.ended: dict[int, Ended] = {}

    def take(self, outputs: StepOutputs) -> None:
        for handle, tokens in rows(outputs).items():
            assert handle not in self.ended
            self.tokens.setdefault(handle, []).extend(tokens)
        for ended in outputs.ended:
            assert ended.handle not in self.ended
            self.ended[ended.handle] = ended


SLOW = Timings([1], [20_000])
"""Of passes in whose time a wait for a window costs little."""


class Situation:
    """Requests `r<handle>` of one worker, step by step."""

    def __init__(self, timings: Timings = NO_TIMINGS, **values: Any) -> None:
        self.config = config(**values)
        self.scheduler = Scheduler(self.config, timings)
        sizes = {name: getattr(self.config, name) for name in SIZES}
        self.worker = FakeWorker(drafter=self.config.drafter, **sizes)
        self.sent: list[Plan] = []
        """Plans that the worker has not run."""
        self.got = Collected()
        self.expected: dict[int, list[int]] = {}
        """What each request must say, unless it is aborted or fails."""
        self.is_checked = True
        """Whether its state is looked at after each result."""
        self.step_ns: Callable[[int], int] | None = None
        """What a pass takes by its tokens, if not what the worker says."""
        self._news: dict[int, NewRequest] = {}
        self._window_ends: dict[int, int] = {}
        """Where windows end that did not hold all of a prediction."""

    @property
    def table(self) -> RequestTable:
        return self.scheduler._state.table

    def add(
        self, handle: int, prompt: list[int], max_tokens: int, now: float = NOW, **values: Any
    ) -> list[int]:
        """Adds a request, followed if it has a prediction; returns what it must say."""
        values.setdefault("is_followed", "predicted_token_ids" in values)
        if "sampling" in values:
            values["sampling_message"] = write_sampling(values["sampling"])
        new = NewRequest(f"r{handle}", prompt, max_tokens, handle=handle, **values)
        self.scheduler.add(new, now)
        self._news[handle] = new
        max_length = min(len(prompt) + max_tokens, self.config.max_length)
        self.expected[handle] = expected_output(
            prompt, self.config.vocab_size, max_length, set(new.stop_token_ids), new.min_tokens
        )
        return self.expected[handle]

    def add_predicted(
        self, handle: int, prompt: list[int], max_tokens: int, **values: Any
    ) -> list[int]:
        """Adds a request whose prediction, and window from the start, is right to its end."""
        max_length = min(len(prompt) + max_tokens, self.config.max_length)
        prediction = expected_output(prompt, self.config.vocab_size, max_length, set())
        expected = self.add(handle, prompt, max_tokens, predicted_token_ids=prediction, **values)
        self.propose(handle)
        return expected

    def propose(self, handle: int, wrong_at: int | None = None) -> None:
        """Sets the prediction from the present place on as the window, one token of it wrong."""
        base, tokens = len(self.text(handle)), self._news[handle].predicted_token_ids
        window = list(tokens[base:])
        if wrong_at is not None:
            window[wrong_at] = (window[wrong_at] + 1) % self.config.vocab_size
        self._window_ends[handle] = base + MAX_NODES
        assert set_window(self.scheduler, f"r{handle}", make_window(base, base, window[:MAX_NODES]))

    def text(self, handle: int) -> list[int]:
        return self.got.tokens.get(handle, [])

    def finished(self, handle: int) -> Finished:
        return self.got.ended[handle].finished

    def slot(self, handle: int) -> int:
        """Returns the slot of a request, -1 if it has none."""
        return self.scheduler._requests[f"r{handle}"].slot

    def abort(self, handle: int) -> Finished:
        finished = self.scheduler.abort(f"r{handle}")
        assert finished is not None
        del self.expected[handle]
        return finished

    def foresee(self, prompt: list[int], number: int) -> list[int]:
        """Returns what the model says after a prompt."""
        return expected_output(prompt, self.config.vocab_size, len(prompt) + number, set())

    @property
    def is_busy(self) -> bool:
        """Whether a request runs or waits, or a plan is in flight."""
        scheduler = self.scheduler
        return scheduler.num_running + scheduler.num_waiting + len(self.sent) > 0

    def send(self, now: float = NOW) -> Plan:
        plan = self.scheduler.schedule(now)
        assert plan is not None
        self.sent.append(plan)
        return plan

    def fill(self) -> None:
        """Sends plans until as many are in flight as may be, or none is left to send."""
        while self.scheduler.can_send and (plan := self.scheduler.schedule(NOW)) is not None:
            self.sent.append(plan)

    def answer(self) -> StepOutputs:
        """Lets the worker run the oldest plan, and settles the result."""
        result = run_plan(self)
        if self.step_ns is not None:
            result = replace(result, step_ns=self.step_ns(result.num_tokens))
        return self._take(self.scheduler.settle(result))

    def settle_wrong(self, result: StepResult, fault: str) -> None:
        """Settles a result in which the row of one request is wrong, which ends alone."""
        (ended,) = self._take(self.scheduler.settle(result)).ended
        del self.expected[ended.handle]
        assert ended.finished.reason is FinishReason.ERROR
        assert re.match(f"the worker's result is wrong: (?:{fault})", ended.finished.message)

    def settle(self) -> None:
        """Settles all that is in flight."""
        while self.sent:
            self.answer()

    def step(self, now: float = NOW) -> Plan:
        plan = self.send(now)
        self.answer()
        return plan

    def lose_worker(self) -> None:
        self.sent.clear()
        self.worker.restart()
        assert self.scheduler.restart(self.config, NO_TIMINGS) == []

    def finish(self) -> None:
        """Runs until all has ended, and checks what every request said."""
        self.drain()
        assert {h: self.text(h) for h in self.expected} == self.expected
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        assert self.scheduler.num_free_blocks == self.config.num_blocks

    def drain(self) -> None:
        """Runs until all has ended, with as many plans in flight as may be."""
        while self.is_busy:
            self.fill()
            self.scheduler.prepare()
            check_integrity(self.scheduler)
            assert self.sent, "nothing runs, and requests are left"
            self.answer()
        check_integrity(self.scheduler)

    def _take(self, outputs: StepOutputs) -> StepOutputs:
        self.got.take(outputs)
        for handle, end in self._window_ends.items():
            is_over = handle in self.got.ended or end >= len(self._news[handle].predicted_token_ids)
            if not is_over and end - len(self.text(handle)) < MAX_NODES // 2:
                self.propose(handle)
        if self.is_checked:
            check_slots(self.scheduler)
        return outputs


def columns(scheduler: Scheduler) -> np.ndarray:
    """Returns a copy of everything the table holds in columns."""
    table = scheduler._state.table
    names = [name for name in RequestTable.__annotations__ if hasattr(table, name)]
    parts = [getattr(table, name) for name in names]
    return np.concatenate(
        [part.ravel() for part in (*parts, table.token_ids, table.windows.expected)]
    )


def state(scheduler: Scheduler) -> list[Any]:
    """Returns copies of all that a plan could change."""
    inner = scheduler._state
    waiting = [request.request_id for request in inner.waiting.requests], inner.waiting.version
    blocks = inner.blocks.num_blocks.tolist(), inner.blocks.num_free
    sent = (
        list(inner.unsent_windows),
        list(inner.released_slots),
        len(inner.in_flight),
        inner.num_plans,
    )
    return [columns(scheduler).tolist(), waiting, blocks, sent, inner.running.tolist()]


def check_slots(scheduler: Scheduler) -> None:
    """Checks that counters are exact, and that blocks are there for all that is in flight."""
    check_integrity(scheduler)
    state = scheduler._state
    table = state.table
    for slot in np.flatnonzero(table.status).tolist():
        num_computed, num_tokens = int(table.num_computed_tokens[slot]), int(table.num_tokens[slot])
        num_verified = num_computed - int(table.num_output_placeholders[slot])
        # In decode, and as soon as a plan in flight ends the prefill, it is exact.
        if table.status[slot] != SlotStatus.ENDED and table.num_emits_in_flight[slot]:
            assert num_verified == num_tokens - 1
        held = int(state.blocks.num_blocks[slot]) * scheduler.config.block_size
        assert held >= min(num_computed, int(table.max_length[slot]))
    likely = [slot for slot in state.running.tolist() if apply._is_plainly_likely(state, slot)]
    # Tests may have set it to another one.
    least = apply.LEAST_CHANCE
    assert (apply._chances(state, np.array(likely, np.int64)) >= least).all()


def run_plan(situation: Situation) -> StepResult:
    """Lets the worker run the oldest plan; the result is still on its way."""
    return step_result(situation.worker.execute(plan_message(situation.sent.pop(0))))
