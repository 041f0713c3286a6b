"""Windows with alternatives: followed, verified as a tree, accounted, and carried all the way."""

from typing import Any

import numpy as np
import pytest

from optimist.proposer.v1 import proposer_pb2
from optimist_common.columns import to_bytes
from optimist_common.draft_source import DraftSource
from optimist_scheduler.core.drafter import Drafter
from optimist_scheduler.core.window import MAX_ALTERNATIVES, Window, is_valid
from optimist_scheduler.translate import plan_message
from tests.scheduler.client import PROMPT, add, ask, truth
from tests.scheduler.drive import make_window
from tests.scheduler.fake_services import (
    FakeProposerServicer,
    FakeWorkerServicer,
    serve_proposer,
    serve_scheduler,
)
from tests.scheduler.situation import Situation

Alternatives = list[tuple[int, int, list[int]]]


def wrong(tokens: list[int], vocab_size: int = 50) -> list[int]:
    return [(token + 1) % vocab_size for token in tokens]


def followed(window: Window, output: list[int]) -> tuple[int, int] | None:
    """Returns base and position in the prediction of what an output follows."""
    found = window.follow(np.array([7, 7, *output], np.int32), 2)
    return None if found is None else (found.base, found.prediction_offset)


def test_the_first_continuation_that_agrees_is_followed() -> None:
    window = make_window(1, 1, 10, [1, 2, 3, 4], [(2, 20, [5, 6]), (2, 30, [5, 7]), (0, 40, [8])])
    assert followed(window, []) is None
    assert followed(window, [9]) == (1, 10)
    assert followed(window, [9, 1, 2, 3]) == (1, 10)
    assert followed(window, [9, 1, 2, 5]) == (3, 20)
    assert followed(window, [9, 1, 2, 5, 6, 9]) == (3, 20)
    assert followed(window, [9, 1, 2, 5, 7]) == (3, 30)
    assert followed(window, [9, 8]) == (1, 40)
    assert followed(window, [9, 8, 1]) == (1, 40)
    # What stands before the departure has to agree too.
    assert followed(window, [9, 9, 2, 5]) is None
    assert followed(window, [9, 1, 2, 9]) is None


@pytest.mark.parametrize(
    ("alternatives", "valid"),
    [
        ([(0, 0, [9])], True),
        ([(1, 3, [9])], True),
        ([(2, 0, [9])], False),
        ([(-1, 0, [9])], False),
        ([(0, 0, [])], False),
        ([(0, 0, [1])], False),
        ([(0, -1, [9])], False),
        ([(0, 4, [9])], False),
        ([(0, 0, [50])], False),
        ([(0, 0, [-1])], False),
        ([(0, 0, [9])] * MAX_ALTERNATIVES, True),
        ([(0, 0, [9])] * (MAX_ALTERNATIVES + 1), False),
    ],
)
def test_alternatives_that_cannot_be_of_the_prediction_are_refused(
    alternatives: Alternatives, valid: bool
) -> None:
    assert is_valid(make_window(1, 0, 0, [1, 2], alternatives), 4, 50) == valid


def departing(
    at: int, **values: Any
) -> tuple[Situation, list[int], tuple[int, int, list[int], Alternatives]]:
    """Returns a request that leaves its window at a place, for its second alternative.

    The window is the first part of the prediction; what the model says stands 60 tokens later.
    """
    values = {"max_num_batched_tokens": 64, "num_speculative_tokens": 6, **values}
    situation = Situation(num_blocks=200, max_model_len=200, **values)
    truth = situation.add(9, [1, 2], 60)
    tokens = [*truth[:at], *wrong(truth[at:])]
    situation.drain()
    situation.add(0, [1, 2], 60, predicted_token_ids=[*tokens, *truth])
    far = [(token + 2) % 50 for token in truth[at:]]
    others = [(at, 0, far), (at, 60 + at, truth[at:])]
    return situation, truth, (0, 0, tokens, others)


@pytest.mark.parametrize("max_plans_in_flight", [1, 2, 3])
@pytest.mark.parametrize("at", [0, 1, 3, 7])
@pytest.mark.usefixtures("always_ahead")
def test_an_alternative_that_agrees_becomes_the_window(at: int, max_plans_in_flight: int) -> None:
    situation, truth, window = departing(at, max_plans_in_flight=max_plans_in_flight)
    assert situation.scheduler.set_window("r0", make_window(1, *window))
    situation.finish()
    finished = situation.finished(0)
    # Without the alternative the rest would come one by one.
    assert finished.num_passes < 30
    assert finished.accepted_prediction_tokens > 30
    assert finished.num_tokens_by_source[DraftSource.PREDICTION] > 30
    assert truth == situation.text(0)


def test_kept_positions_are_those_of_the_alternative() -> None:
    situation, _, window = departing(3)
    situation.scheduler.set_window("r0", make_window(1, *window))
    kept = []
    for _ in range(3):
        situation.step()
        slot = situation.slot(0)
        accounts = situation.scheduler._state.accounts
        accounts._count()
        kept.append(np.flatnonzero(accounts._marks[slot] & 2).tolist())
        request = situation.scheduler._requests["r0"]
    assert request.window is not None
    assert (request.window.base, request.window.prediction_offset) == (3, 63)
    assert request.window.alternatives == ()
    # The first pass crossed the departure. Each pass adds a token of the model's own behind.
    assert kept == [
        [0, 1, 2, 63],
        [0, 1, 2, 63, *range(65, 71)],
        [0, 1, 2, 63, *range(65, 71), *range(72, 78)],
    ]
    assert situation.table.window_end[situation.slot(0)] == 2 + 60
    situation.finish()


def test_a_plan_carries_the_alternatives() -> None:
    situation, _, window = departing(3)
    situation.scheduler.set_window("r0", make_window(1, *window))
    (message,) = plan_message(situation.send()).windows
    assert [(other.offset, other.token_ids) for other in message.alternatives] == [
        (offset, to_bytes(tokens)) for offset, _, tokens in window[3]
    ]
    situation.finish()


def test_a_window_that_comes_late_is_followed_where_the_output_is_by_then() -> None:
    situation, _, window = departing(2)
    for _ in range(5):
        situation.step()
    assert situation.scheduler.set_window("r0", make_window(1, *window))
    assert situation.table.window_end[situation.slot(0)] == 2 + 60
    situation.step()
    assert len(situation.text(0)) == 5 + 7
    situation.finish()


def test_a_preempted_request_goes_on_along_its_alternative() -> None:
    situation, _, window = departing(2)
    situation.scheduler.set_window("r0", make_window(1, *window))
    situation.step()
    situation.scheduler._state.preempt(situation.slot(0))
    situation.step()
    assert situation.table.window_end[situation.slot(0)] == 2 + 60
    situation.finish()
    assert situation.finished(0).accepted_prediction_tokens > 30


def test_where_no_continuation_agrees_the_drafter_drafts() -> None:
    situation, truth, (base, position, tokens, _) = departing(
        2, drafter=Drafter(DraftSource.EAGLE, 2, 2)
    )
    others = [(2, 0, [(token + 2) % 50 for token in truth[2:]])]
    situation.scheduler.set_window("r0", make_window(1, base, position, tokens, others))
    situation.finish()
    sources = situation.finished(0).num_tokens_by_source
    assert sources[DraftSource.PREDICTION] == 2
    assert sources[DraftSource.EAGLE] > 0


class BranchingProposer(FakeProposerServicer):
    """Proposes a window that is wrong from its third token on, and continuations from there."""

    def answer(self, request: proposer_pb2.ProposeRequest) -> proposer_pb2.ProposeResponse:
        response = super().answer(request)
        for window in response.windows:
            right = truth(PROMPT)[window.base :]
            tokens = [*right[:2], *wrong(right[2:])]
            window.token_ids = to_bytes(tokens)
            window.prediction_offset = 0
            for shift in (2, 0, 3, 4, 5):
                other = [(token + shift) % 50 for token in right[2:]]
                if other:
                    window.alternatives.add(
                        offset=2, prediction_offset=2, token_ids=to_bytes(other)
                    )
        return response


async def test_alternatives_come_from_the_proposer_to_the_worker(
    worker: FakeWorkerServicer, worker_port: int
) -> None:
    seen: list[int] = []
    execute = worker.worker.execute

    def record(plan: Any) -> Any:
        seen.extend(len(window.alternatives) for window in plan.windows)
        return execute(plan)

    worker.worker.execute = record  # type: ignore[method-assign]
    async with serve_proposer(BranchingProposer()) as port:
        options: dict[str, Any] = {"proposer_wait_ms": 2000, "max_plans_in_flight": 1}
        async with serve_scheduler(worker_port, [port], **options) as (_, stub):
            client = await ask(stub, add(1, PROMPT, predicted=truth(PROMPT)))
    assert client.tokens[1] == truth(PROMPT)
    assert max(seen) == MAX_ALTERNATIVES
    assert client.finished[1].accepted_prediction_tokens > 5
