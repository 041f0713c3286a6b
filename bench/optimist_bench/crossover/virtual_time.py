"""The scheduler's core with a worker whose passes take the time that a curve says, not any.

Tokens per time with and without speculation can be compared this way without any noise of a clock:
the same seed gives the same figures.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optimist_bench.harness.simulated_worker import SimulatedModel, SimulatedWorker
from optimist_common.columns import from_bytes
from optimist_common.drafts import DraftSource
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.workers.translate import plan_message, step_result

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


class VirtualRun:
    """A scheduler that keeps a number of requests running in virtual time."""

    def __init__(self, situation: Situation, *, speculates: bool, policy: str = "goodput") -> None:
        """Begins with all requests waiting."""
        self._situation = situation
        drafter = Drafter(DraftSource.DRAFT_MODEL, situation.max_drafts, situation.max_drafts)
        blocks = -(-(1 + situation.output_tokens + situation.max_drafts + 1) // BLOCK_SIZE) + 1
        most_tokens = situation.num_requests * (1 + situation.max_drafts)
        model = SimulatedModel(
            vocab_size=VOCAB_SIZE,
            max_model_len=1 + situation.output_tokens,
            block_size=BLOCK_SIZE,
            num_blocks=2 * blocks * situation.num_requests,
            max_num_seqs=situation.num_requests,
            max_num_batched_tokens=most_tokens,
            acceptance=situation.acceptance,
            seed=situation.seed,
            drafter=drafter,
        )
        config = EngineConfig.model_validate(
            {
                "vocab_size": model.vocab_size,
                "max_model_len": model.max_model_len,
                "num_blocks": model.num_blocks,
                "block_size": model.block_size,
                "max_num_seqs": model.max_num_seqs,
                "max_num_batched_tokens": model.max_num_batched_tokens,
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
        self._worker = SimulatedWorker(model)
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
        result = self._execute(self._plans.popleft())
        self.seconds += result.step_ns / 1e9
        outputs = scheduler.settle(result)
        self.num_tokens += len(outputs.token_ids)
        for _ in outputs.ended:
            self._add()

    def _execute(self, plan: Plan) -> StepResult:
        """Runs a plan and says how long that would have taken."""
        response = self._worker.execute(plan_message(plan))
        num_drafts = int(from_bytes(response.num_drafted_tokens).max(initial=0))
        draft_us = self._situation.drafter_us(num_drafts) if num_drafts else 0.0
        pass_us = self._situation.pass_us(response.num_tokens) if response.num_tokens else 0.0
        response.draft_ns = round(1000 * draft_us)
        response.step_ns = round(1000 * (draft_us + pass_us))
        return step_result(response)

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
