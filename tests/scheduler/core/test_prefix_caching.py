"""Blocks of equal beginnings: shared when verified, found again, never wrong."""

from typing import Any

import pytest

from tests.scheduler.situation import Situation

DEPTHS = pytest.mark.parametrize("depth", [1, 3])
pytestmark = pytest.mark.usefixtures("always_ahead")

BEGINNING = [7, 3, 9, 1] * 4
"""Four blocks."""


def caching(**values: Any) -> Situation:
    return Situation(**{"enable_prefix_caching": True, "max_num_batched_tokens": 64, **values})


def cached_blocks(situation: Situation) -> int:
    """Sends the next plan, which admits one request; returns how many blocks it begins with."""
    plan = situation.send()
    (admission,) = plan.admissions
    count = len(admission.cached_blocks)
    # What is cached is not computed.
    left = situation.config.max_num_batched_tokens - int(plan.num_known_tokens[:-1].sum())
    assert plan.num_known_tokens[-1] == min(len(admission.request.token_ids) - 4 * count, left)
    return count


OTHER = [8, *BEGINNING[1:]]


@pytest.mark.parametrize(
    ("values", "prompts", "counts"),
    [
        ({}, [(BEGINNING, ""), (BEGINNING, "a"), (BEGINNING, "b"), (BEGINNING, "a")], [0, 0, 0, 4]),
        # Another first token, and without the option.
        ({}, [(BEGINNING, ""), (OTHER, "")], [0, 0]),
        ({"enable_prefix_caching": False}, [(BEGINNING, "")] * 2, [0, 0]),
    ],
)
def test_only_equal_beginnings_of_one_salt_are_shared(
    values: dict[str, Any], prompts: list[tuple[list[int], str]], counts: list[int]
) -> None:
    situation = caching(**values)
    for handle, ((beginning, salt), count) in enumerate(zip(prompts, counts, strict=True)):
        situation.add(handle, [*beginning, 1], 9, cache_salt=salt)
        assert cached_blocks(situation) == count
        situation.answer()
    situation.finish()
    assert (situation.scheduler.stats.num_prefix_queries > 0) == (not values)


@DEPTHS
@pytest.mark.parametrize("is_predicted", [False, True])
def test_a_follow_up_reuses_the_output_of_a_finished_request(
    depth: int, is_predicted: bool
) -> None:
    situation = caching(max_plans_in_flight=depth)
    add = situation.add_predicted if is_predicted else situation.add
    output = add(0, BEGINNING[:10], 14)
    situation.finish()
    situation.add(1, [*BEGINNING[:10], *output, 4, 4], 5)
    # 24 tokens; the last one's keys and values were never computed, so five blocks are full.
    assert cached_blocks(situation) == 5
    situation.answer()
    situation.finish()
