"""Sizes hold the steps that have them, and are few enough for graphs."""

import dataclasses
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.sampling_table import Needs, SamplingTable
from optimist_worker.core.batch.host_view import HeldSlot, StepBounds, find_bounds
from optimist_worker.core.batch.step_sizes import StepSizes, holds
from optimist_worker.core.plan import PlannedRow
from optimist_worker.execution.graphs import MOST_GRAPHS, MOST_TOKENS

NEEDS = Needs(False, False, False, False, 0, False, False)


def bounds_of(
    rows: list[tuple[int, int, int]], needs: Needs = NEEDS, windows: int = 0
) -> StepBounds:
    """Bounds of rows: known tokens, drafts, and blocks that they hold, of one token each.

    So many of the first have windows, which are trees but for the first one.
    """
    planned = [PlannedRow(slot, row[0], row[1], []) for slot, row in enumerate(rows)]
    held = [HeldSlot("", 0, blocks, None, num_unseen=drafts + 4) for _, drafts, blocks in rows]
    for slot in held[:windows]:
        slot.has_window, slot.has_tree = True, slot is not held[0]
    return find_bounds(planned, held, 1, needs)


TEMPERATURES, CUTS, TOP_KS = st.sampled_from([0.0, 0.5]), st.floats(0.01, 1.0), st.integers(0, 300)
A_ROW = st.tuples(st.integers(1, 300), st.integers(0, 64), st.integers(0, 5000))


SIZES = st.builds(StepSizes, st.integers(1, 4096), st.sampled_from([None, 300]), st.booleans())
NEED = st.builds(Needs, *[st.booleans()] * 4, st.integers(0, 300), *[st.booleans()] * 2)
STEP = st.builds(bounds_of, st.lists(A_ROW, min_size=1, max_size=70), NEED, st.integers(0, 3))


@given(STEP, SIZES)
def test_a_size_holds_every_step_that_has_it(bounds: StepBounds, sizes: StepSizes) -> None:
    size = sizes.size_of(bounds)
    if not (sizes.has_network and bounds.uses_drafter):
        # Nobody reads them.
        bounds = dataclasses.replace(bounds, max_unseen=0, num_unseen=0)
    if not bounds.max_num_drafts:
        bounds = dataclasses.replace(bounds, has_trees=False)
    assert holds(size, bounds)
    assert size.num_unseen <= max(2 * bounds.num_unseen, size.num_tokens)
    # Not more than any pass may hold, unless the plan itself has more.
    assert size.num_tokens <= max(sizes.max_num_batched_tokens, bounds.num_tokens)
    # Every token costs where there are many.
    least = 64 if bounds.num_tokens <= 64 else 1.5 * bounds.num_tokens
    assert size.num_tokens <= least
    assert (size.max_num_drafts > 0) == (bounds.max_num_drafts > 0)
    assert size.uses_drafter == bounds.uses_drafter
    assert sizes.size_of(size) == size


@given(STEP, SIZES, st.data())
def test_a_step_that_holds_another_has_no_less_a_size(
    bounds: StepBounds, sizes: StepSizes, data: st.DataObject
) -> None:
    more = {
        name: getattr(bounds, name) + data.draw(st.integers(0, 300), name)
        for name in (
            *("num_rows", "num_tokens", "num_logits", "max_num_queries", "max_num_keys"),
            *("max_unseen", "num_unseen"),
        )
    }
    larger = dataclasses.replace(
        bounds,
        **more,
        max_num_drafts=bounds.max_num_drafts * 2,
        uses_windows=True,
        has_trees=True,
        has_minimum=True,
        needs=bounds.needs._replace(processes=True, samples=True, penalizes=True, biases=True),
    )
    assert holds(sizes.size_of(larger), sizes.size_of(bounds))


@pytest.mark.parametrize("has_drafter", [False, True])
@pytest.mark.parametrize(("most_tokens", "most_rows"), [(1, 1), (600, 40), (8192, 256)])
def test_the_largest_size_is_captured_first_at_start(
    most_tokens: int, most_rows: int, has_drafter: bool
) -> None:
    sizes = StepSizes(most_tokens, 300, has_network=False)
    found = list(sizes.at_start(MOST_TOKENS, most_rows, has_drafter=has_drafter))
    for name in ("num_tokens", "num_logits", "num_rows", "max_num_queries", "max_num_drafts"):
        assert getattr(found[0], name) == max(getattr(each, name) for each in found)
    assert all(sizes.size_of(each) == each for each in found)
    assert len(found) <= 1.3 * MOST_GRAPHS
    assert found[0].num_tokens == min(most_tokens, MOST_TOKENS)
    # A step of one token is among them, whatever it is chosen by.
    step = bounds_of([(1, 0, 100)], Needs(True, True, False, False, 40, True, False), 0)
    assert any(holds(each, sizes.size_of(step)) for each in found)


@given(st.builds(SamplingParams, temperature=TEMPERATURES, top_p=CUTS, min_p=CUTS, top_k=TOP_KS))
def test_widened_needs_have_all_that_was_needed(params: SamplingParams) -> None:
    table = SamplingTable(1, 300, torch.device("cpu"))
    table.set(0, params)
    needs = table.needs([0])
    widened = needs.widened(300)
    assert all(wide >= narrow for wide, narrow in zip(widened, needs, strict=True))
    assert widened.samples == needs.processes
    assert widened.widened(300) == widened


SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 0.7, "top_k": 40},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.0, "presence_penalty": 0.5},
]


@pytest.mark.parametrize(("num_slots", "most"), [(1, 30), (8, 100)])
def test_few_sizes_serve_mixed_requests(num_slots: int, most: int) -> None:
    """1,500 steps of requests that sample in their own ways have few sizes."""
    rng = random.Random(1)
    table = SamplingTable(num_slots, 128256, torch.device("cpu"))
    held: dict[int, HeldSlot] = {}
    sizes, used = StepSizes(2048, 128256, has_network=False), set()
    num_steps = 1500
    for _ in range(num_steps):
        for slot in range(num_slots):
            if slot not in held or rng.random() < 1 / 60:
                table.set(slot, SamplingParams(**rng.choice(SAMPLING)))
                held[slot] = HeldSlot(
                    "", rng.randint(20, 1500), 0, None, has_window=rng.random() < 0.7
                )
        slots = sorted(rng.sample(range(num_slots), max(1, num_slots - rng.choice([0, 0, 0, 1]))))
        rows = []
        for slot in slots:
            each = held[slot]
            drafts = rng.choice([0, 1, 2, 4, 8, 8, 16] if each.has_window else [0, 0, 4])
            rows.append(PlannedRow(slot, 1, drafts, []))
            each.num_unseen = rng.randint(1, 1 + drafts)
            each.num_tokens += 1 + drafts // 2
            each.num_blocks = each.num_tokens // 16 + 2
        bounds = find_bounds(rows, [held[slot] for slot in slots], 16, table.needs(slots))
        used.add(sizes.size_of(bounds))
    assert len(used) <= most
