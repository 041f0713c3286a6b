"""The scheduler's core with a worker whose passes take the time that a curve says, not any.

Tokens per time with and without speculation can be compared this way without any noise of a clock:
the same seed gives the same figures.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimist_common.draft_source import DraftSource
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.validate import NewRequest
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.width.drafter import Drafter

VOCAB_SIZE = 16
BLOCK_SIZE = 16

Times = Callable[[int], float]
"""Microseconds by a number of tokens, or of levels."""


@dataclass(frozen=True)
class Situation:
    """A worker with a drafter of chains, and how many requests run on it at once."""

    num_requests: int
    acceptance: float
    """Chance that a draft is accepted if those before it were."""
    max_drafts: int
    pass_us: Times
    """Time of a pass by its tokens, not falling."""
    drafter_us: Times
    """Time of the drafter by the drafts of a row, not falling."""
    output_tokens: int = 128
    """Of each request; one that ends is followed by another."""
    plans_in_flight: int = 1
    seed: int = 0


class VirtualWorker:
    """Accepts drafts by chance and says how long that would have taken."""

    def __init__(self, situation: Situation) -> None:
        """Begins without requests."""
        self._situation = situation
        self._random = np.random.default_rng(situation.seed)
        self._length = np.zeros(situation.num_requests, np.int64)
        self._max_length = np.zeros(situation.num_requests, np.int64)

    def execute(self, plan: Plan) -> StepResult:
        """Runs a plan, all of whose rows decode: prompts have one token."""
        for admission in plan.admissions:
            self._length[admission.slot] = len(admission.token_ids)
            self._max_length[admission.slot] = admission.request.max_length
        situation, slots = self._situation, plan.slots
        left = self._max_length[slots] - self._length[slots]
        is_alive = left > 0
        drafted = np.where(is_alive, np.minimum(plan.num_draft_tokens, left - 1), 0)
        accepted = self._accept(drafted)
        emitted = np.where(is_alive, 1 + accepted, 0)
        self._length[slots] += emitted
        num_tokens = int(is_alive.sum() + drafted.sum())
        draft_us = situation.drafter_us(int(drafted.max())) if drafted.any() else 0.0
        step_us = draft_us + (situation.pass_us(num_tokens) if num_tokens else 0.0)
        return StepResult(
            sequence=plan.sequence,
            slots=slots.astype(np.int32),
            lengths=self._length[slots].astype(np.int32),
            num_emitted_tokens=emitted.astype(np.int32),
            token_ids=np.zeros(int(emitted.sum()), np.int32),
            num_drafted_tokens=drafted.astype(np.int32),
            num_accepted_tokens=accepted.astype(np.int32),
            draft_sources=((drafted > 0) * DraftSource.DRAFT_MODEL).astype(np.int32),
            num_tokens=num_tokens,
            step_ns=round(1000 * step_us),
            draft_ns=round(1000 * draft_us),
        )

    def _accept(self, drafted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if self._situation.acceptance == 1.0:
            return drafted
        run = self._random.geometric(1.0 - self._situation.acceptance, len(drafted)) - 1
        return np.minimum(run, drafted)


class VirtualRun:
    """A scheduler that keeps a number of requests running in virtual time."""

    def __init__(self, situation: Situation, *, speculates: bool, policy: str = "goodput") -> None:
        """Begins with all requests waiting."""
        self._situation = situation
        drafter = Drafter(DraftSource.DRAFT_MODEL, situation.max_drafts, situation.max_drafts)
        blocks = -(-(1 + situation.output_tokens + situation.max_drafts + 1) // BLOCK_SIZE) + 1
        most_tokens = situation.num_requests * (1 + situation.max_drafts)
        config = EngineConfig.model_validate(
            {
                "vocab_size": VOCAB_SIZE,
                "max_model_len": 1 + situation.output_tokens,
                "num_blocks": 2 * blocks * situation.num_requests,
                "block_size": BLOCK_SIZE,
                "max_num_seqs": situation.num_requests,
                "max_num_batched_tokens": most_tokens,
                "num_speculative_tokens": situation.max_drafts if speculates else 0,
                "max_plans_in_flight": situation.plans_in_flight,
                "draft_width": policy,
                "drafter": drafter,
            }
        )
        timed = _powers_of_two(most_tokens)
        self._scheduler = Scheduler(
            config,
            [(each, max(1, round(situation.pass_us(each)))) for each in timed],
            [max(1, round(situation.drafter_us(1 + each))) for each in range(situation.max_drafts)],
        )
        self._worker = VirtualWorker(situation)
        self._plans: deque[Plan] = deque()
        self._num_added = 0
        self.num_tokens = 0
        """Tokens delivered."""
        self.seconds = 0.0
        """Virtual time."""
        for _ in range(situation.num_requests):
            self._add()

    def run_until(self, num_tokens: int) -> None:
        """Goes on until as many tokens were delivered in all."""
        while self.num_tokens < num_tokens:
            self._step()

    def _step(self) -> None:
        scheduler = self._scheduler
        while scheduler.can_send and (plan := scheduler.schedule(self.seconds)) is not None:
            self._plans.append(plan)
        scheduler.prepare()
        result = self._worker.execute(self._plans.popleft())
        self.seconds += result.step_ns / 1e9
        outputs = scheduler.settle(result)
        self.num_tokens += len(outputs.token_ids)
        for _ in outputs.ended:
            self._add()

    def _add(self) -> None:
        self._num_added += 1
        request = NewRequest(f"request-{self._num_added}", [0], self._situation.output_tokens)
        self._scheduler.add(request, self.seconds)


def throughput_ratio(
    situation: Situation, *, warm_up_tokens: int, num_tokens: int, policy: str = "goodput"
) -> float:
    """Returns tokens per virtual time with adaptive widths over those without speculation.

    Args:
        situation: What runs.
        warm_up_tokens: Tokens before what is counted: what is learned by then is not.
        num_tokens: Tokens that are counted.
        policy: How widths are chosen.
    """
    rates = []
    for speculates in (True, False):
        run = VirtualRun(situation, speculates=speculates, policy=policy)
        run.run_until(warm_up_tokens)
        tokens, seconds = run.num_tokens, run.seconds
        run.run_until(run.num_tokens + num_tokens)
        rates.append((run.num_tokens - tokens) / (run.seconds - seconds))
    return rates[0] / rates[1]


def _powers_of_two(most: int) -> Sequence[int]:
    return [1 << exponent for exponent in range(most.bit_length())]
