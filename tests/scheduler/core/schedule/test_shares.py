"""What prompts and drafts get of a pass."""

from typing import Any

import pytest

from tests.scheduler.situation import NOW, Situation, make_window, set_window

pytestmark = pytest.mark.usefixtures("always_ahead")
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])

# Prompts and drafts.


def busy(prefill_share: float, **values: Any) -> Situation:
    """Two rows with right windows beside one of which a prompt of 50 tokens is computed."""
    situation = Situation(
        prefill_share=prefill_share,
        num_speculative_tokens=12,
        max_num_batched_tokens=24,
        num_blocks=80,
        **values,
    )
    situation.add_predicted(0, [1, 2], 50)
    situation.add_predicted(1, [3, 4], 50)
    situation.step()
    situation.add(2, [5] * 50, 3)
    return situation


@pytest.mark.parametrize(
    ("prefill_share", "num_drafts", "num_prompt"),
    # 24 tokens: each row gets one, 22 are shared, of which the new request may take its part.
    [(0.0, 22, 0), (0.25, 17, 5), (0.5, 11, 11), (0.75, 6, 16), (1.0, 0, 22)],
)
def test_drafts_and_prompts_share_a_pass(
    prefill_share: float, num_drafts: int, num_prompt: int
) -> None:
    situation = busy(prefill_share)
    plan = situation.step()
    assert plan.num_draft_tokens.sum() == num_drafts
    assert plan.num_known_tokens.tolist() == ([1, 1, num_prompt] if num_prompt else [1, 1])
    situation.finish()


@pytest.mark.parametrize("prefill_share", [0.0, 0.5, 1.0])
@DEPTHS
def test_every_running_row_gets_its_token(prefill_share: float, depth: int) -> None:
    situation = busy(prefill_share, max_plans_in_flight=depth)
    situation.add(3, [6] * 50, 3)
    table = situation.table
    while not {0, 1} <= set(situation.got.ended):
        while situation.scheduler.can_send:
            may_run = table.num_tokens + table.num_emits_in_flight < table.max_length
            running = set(situation.scheduler._state.running.tolist())
            plan = situation.scheduler.schedule(NOW)
            slots = set(plan.slots.tolist()) if plan else set()
            assert {slot for slot in running if may_run[slot]} <= slots
            if plan is None:
                break
            assert (plan.num_known_tokens > 0).all()
            situation.sent.append(plan)
        situation.answer()
    situation.finish()
    assert situation.scheduler.stats.num_preemptions == 0


def test_what_one_side_leaves_goes_to_the_other() -> None:
    situation = Situation(max_num_batched_tokens=24, prefill_share=0.5)
    situation.add_predicted(0, [1, 2], 50)
    situation.step()
    situation.add(1, [5] * 50, 3)
    plan = situation.step()
    # One row may draft four; the prompt gets all that is left of the 24.
    assert plan.num_draft_tokens.tolist() == [4, 0]
    assert plan.num_known_tokens.tolist() == [1, 19]
    situation.finish()


def test_a_prompt_that_is_cut_off_takes_no_drafts_from_others() -> None:
    situation = Situation(policy="priority")
    situation.add_predicted(0, [1, 2], 50, priority=5)
    situation.step()
    situation.add_predicted(1, [3] * 50, 9, priority=0)
    for _ in range(2):
        plan = situation.step()
    # The prompt is the more urgent one, and has nothing yet that its window could go on with.
    drafts = dict(zip(plan.slots.tolist(), plan.num_draft_tokens.tolist(), strict=True))
    assert drafts == {situation.slot(0): 4, situation.slot(1): 0}
    situation.finish()


# How many drafts.


MILLISECOND = 1_000_000
DEAR = [(2**power, 1000 + 100 * 2**power) for power in range(9)]
"""A pass of 1 ms, and 0.1 ms for each token."""
FLAT = [(num_tokens, 1000) for num_tokens in (1, 2, 4, 8, 16)]


def widths(situation: Situation, num_steps: int) -> list[int]:
    """Returns the drafts that the only request gets in each of the next steps."""
    return [int(situation.step().num_draft_tokens[0]) for _ in range(num_steps)]


def test_drafts_are_left_off_while_they_are_not_worth_it_and_come_back() -> None:
    situation = Situation(FLAT, draft_width="goodput", max_model_len=320, num_blocks=80)
    situation.add_predicted(0, [1, 2], 310)
    situation.step_ns = lambda num_tokens: MILLISECOND
    situation.step()
    assert widths(situation, 16) == [4] * 16
    # Each draft costs more than a pass of its own.
    situation.step_ns = lambda num_tokens: (6 * num_tokens - 5) * MILLISECOND
    assert 0 in widths(situation, 33)
    # A pass counts as four times what was expected at most, so that a few more are tried.
    assert widths(situation, 16).count(0) >= 12
    # A pass costs the same again, whatever it holds.
    situation.step_ns = lambda num_tokens: 20 * MILLISECOND
    chosen = []
    for _ in range(33):
        # What was not drafted from has rested.
        situation.propose(0)
        chosen += widths(situation, 1)
    assert 4 in chosen
    situation.finish()


def test_drafts_end_where_they_are_not_worth_their_cost() -> None:
    sizes: dict[str, Any] = {"max_num_batched_tokens": 64, "num_blocks": 200, "max_model_len": 200}
    situation = Situation(DEAR, draft_width="goodput", num_speculative_tokens=16, **sizes)
    situation.step_ns = lambda num_tokens: 1000 * (1000 + 100 * num_tokens)
    truth = situation.add(9, [1, 2], 60)
    situation.drain()
    situation.add(0, [1, 2], 60, predicted_token_ids=truth)
    situation.step()
    # Six that are nearly certain, and then hardly any chance.
    chances = [0.99**place for place in range(1, 7)] + [0.02] * 20
    set_window(situation.scheduler, "r0", make_window(1, 1, truth[1:27], chances))
    assert situation.send().num_draft_tokens.tolist() == [6]
    situation.answer()
    # What is left behind seven tokens has a chance of its own, once it is what comes.
    assert situation.send().num_draft_tokens.tolist() == [16]
    situation.answer()
    situation.drain()
