"""Bounds cover what is planned, and rounded ones are few enough for graphs."""

import dataclasses
import random
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.sampling_table import Needs, SamplingTable
from optimist_worker.core.batch.host_view import HeldSlot, StepBounds, find_bounds, round_up
from optimist_worker.core.plan import PlannedRow
from optimist_worker.execution.executor import MOST_GRAPHS

NEEDS = Needs(False, False, False, False, 0, False, False)
SIZES = (
    *("num_rows", "num_tokens", "num_logits", "max_num_queries", "max_num_keys"),
    *("max_num_drafts", "max_unseen", "num_unseen"),
)


def bounds_of(rows: list[tuple[int, int, int]]) -> StepBounds:
    """Bounds of rows: known tokens, drafts, and blocks that they hold, of one token each."""
    planned = [PlannedRow(slot, row[0], row[1], []) for slot, row in enumerate(rows)]
    held = [HeldSlot("", 0, blocks, None, num_unseen=drafts + 4) for _, drafts, blocks in rows]
    return find_bounds(planned, held, 1, NEEDS)


@given(st.integers(0, 10**6))
def test_the_next_size_is_never_half_as_large_again(number: int) -> None:
    rounded = round_up(number)
    assert number <= rounded <= max(2, 1.5 * number)
    # A power of two, or one and a half of it.
    power = 1 << max(0, rounded.bit_length() - 1)
    assert rounded in (0, power, power + power // 2)


TEMPERATURES, CUTS, TOP_KS = st.sampled_from([0.0, 0.5]), st.floats(0.01, 1.0), st.integers(0, 300)
A_ROW = st.tuples(st.integers(1, 300), st.integers(0, 64), st.integers(0, 5000))


@given(rows=st.lists(A_ROW, min_size=1, max_size=70), most=st.integers(1, 4096))
def test_rounded_bounds_cover_the_plan_and_are_stable(
    rows: list[tuple[int, int, int]], most: int
) -> None:
    bounds = bounds_of(rows)
    rounded = bounds.rounded(most, 300)
    for name in SIZES:
        assert getattr(rounded, name) >= getattr(bounds, name), name
    # Not more than any pass may hold, unless the plan itself has more.
    assert rounded.num_tokens <= max(most, bounds.num_tokens)
    assert (rounded.max_num_drafts > 0) == (bounds.max_num_drafts > 0)
    assert rounded.uses_windows >= bounds.uses_windows
    others = {field.name for field in dataclasses.fields(bounds)} - {*SIZES, "uses_windows"}
    assert all(getattr(rounded, name) == getattr(bounds, name) for name in others)
    assert rounded.rounded(most, 300) == rounded


@given(st.builds(SamplingParams, temperature=TEMPERATURES, top_p=CUTS, min_p=CUTS, top_k=TOP_KS))
def test_widened_needs_have_all_that_was_needed(params: SamplingParams) -> None:
    table = SamplingTable(1, 300, torch.device("cpu"))
    table.set(0, params)
    needs = table.needs([0])
    widened = needs.widened(300)
    assert all(wide >= narrow for wide, narrow in zip(widened, needs, strict=True))
    assert widened.samples == needs.samples
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


@pytest.mark.parametrize(("num_slots", "least"), [(1, 0.95), (8, 0.8)])
def test_few_sizes_serve_mixed_requests(num_slots: int, least: float) -> None:
    """Steps of requests that sample in their own ways mostly replay one of the graphs kept."""
    rng = random.Random(1)
    table = SamplingTable(num_slots, 128256, torch.device("cpu"))
    held: dict[int, HeldSlot] = {}
    graphs: OrderedDict[StepBounds, bool] = OrderedDict()
    num_replays, num_steps = 0, 1500
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
        key = bounds.rounded(2048, 128256)
        # The second run captures, see `GraphCache`.
        num_replays += graphs.get(key, False)
        graphs[key] = key in graphs
        graphs.move_to_end(key)
        if len(graphs) > MOST_GRAPHS:
            graphs.popitem(last=False)
    assert num_replays / num_steps > least
