"""Drives the core against the strict worker, one plan at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from optimist_common.token_tree import TokenTree
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.plan import Plan
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.values import Ended, StepOutputs
from optimist_scheduler.core.windows.window import Window
from optimist_scheduler.workers.translate import plan_message, step_result
from tests.scheduler.fake_worker import FakeWorker

NOW = 0.0


def make_window(
    base: int,
    position: int,
    token_ids: Sequence[int],
    branches: Sequence[tuple[int, int, Sequence[int]]] = (),
    values: Sequence[float] = (),
) -> Window:
    """Returns a window: a chain, and what else may come in the place of tokens of it.

    Args:
        base: Output position of the first token.
        position: Its position in the predictions; those of the others come behind; -1 for none.
        token_ids: The chain.
        branches: Index in the chain, position in the predictions and tokens of each branch. Nodes
            of the same depth come in this order, behind those of the chain.
        values: Chances of the nodes.
    """
    nodes = [(token, place - 1, position + place) for place, token in enumerate(token_ids)]
    for index, first, tokens in branches:
        parent = index - 1
        for place, token in enumerate(tokens):
            same = [each for each, node in enumerate(nodes) if node[:2] == (token, parent)]
            if not same:
                nodes.append((token, parent, first + place))
            parent = same[0] if same else len(nodes) - 1
    depths = list[int]()
    for _, parent, _ in nodes:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    order = sorted(range(len(nodes)), key=depths.__getitem__)
    places = {-1: -1} | {node: place for place, node in enumerate(order)}
    nodes = [(nodes[each][0], places[nodes[each][1]], nodes[each][2]) for each in order]
    if position < 0:
        nodes = [(token, parent, -1) for token, parent, _ in nodes]
    return window_of(base, nodes, values)


def window_of(
    base: int, nodes: Sequence[tuple[int, int, int]], values: Sequence[float] = ()
) -> Window:
    """Returns a window of nodes, each with its token, parent, and position in the predictions."""
    tokens, parents, positions = (np.array([node[i] for node in nodes], np.int32) for i in range(3))
    tree = TokenTree.from_columns(tokens, parents)
    return Window(base, tree, positions, np.array(values, np.float32))


def config(**values: Any) -> EngineConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 50,
        "max_model_len": 64,
        "block_size": 4,
        "num_blocks": 32,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_num_waiting": 8,
        "num_speculative_tokens": 4,
        "draft_width": "fixed",
        "max_plans_in_flight": 1,
    }
    return EngineConfig(**{**sizes, **values})


def fake_worker(bounds: EngineConfig) -> FakeWorker:
    return FakeWorker(
        bounds.vocab_size,
        bounds.max_model_len,
        bounds.block_size,
        bounds.num_blocks,
        bounds.max_num_seqs,
        bounds.max_num_batched_tokens,
        drafter=bounds.drafter,
    )


def execute(worker: FakeWorker, scheduler: Scheduler, plan: Plan) -> StepOutputs:
    return scheduler.settle(step_result(worker.execute(plan_message(plan))))


def schedule(scheduler: Scheduler) -> Plan:
    plan = scheduler.schedule(NOW)
    assert plan is not None
    return plan


def step(scheduler: Scheduler, worker: FakeWorker) -> StepOutputs:
    return execute(worker, scheduler, schedule(scheduler))


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


def run(scheduler: Scheduler, worker: FakeWorker) -> Collected:
    """Runs with as many plans in flight as are allowed, until all requests have ended."""
    collected, plans = Collected(), list[Plan]()
    while scheduler.num_running or scheduler.num_waiting or plans:
        while scheduler.can_send and (plan := scheduler.schedule(NOW)) is not None:
            plans.append(plan)
        scheduler.prepare()
        assert plans, "nothing runs, and requests are left"
        collected.take(execute(worker, scheduler, plans.pop(0)))
    return collected
