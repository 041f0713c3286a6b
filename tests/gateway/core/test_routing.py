"""Which scheduler a request goes to."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from optimist_gateway.core.schedulers import LOAD_FACTOR, LOAD_SLACK, Candidate, choose

NAMES = [f"10.0.0.{number}:50051" for number in range(6)]
LOADS = st.lists(st.integers(0, 50), min_size=6, max_size=6)
fleets = st.lists(st.sampled_from(NAMES), min_size=2, unique=True)
prefixes = st.binary(min_size=1, max_size=64)


@given(fleets, prefixes)
def test_only_the_share_of_a_scheduler_that_vanishes_moves(names: list[str], prefix: bytes) -> None:
    fleet = [Candidate(name) for name in names]
    chosen = fleet[choose(fleet, prefix, "")]
    for gone in fleet:
        left = [one for one in fleet if one != gone]
        if gone != chosen:
            assert left[choose(left, prefix, "")] == chosen


@given(fleets, prefixes, LOADS)
def test_none_with_clearly_more_to_do(names: list[str], prefix: bytes, loads: list[int]) -> None:
    fleet = [Candidate(name, load) for name, load in zip(names, loads, strict=False)]
    least = min(one.load for one in fleet)
    chosen = fleet[choose(fleet, prefix, "")]
    assert chosen.load <= least * LOAD_FACTOR + LOAD_SLACK
    idle = [replace(one, load=0) for one in fleet]
    preferred = choose(idle, prefix, "")
    if fleet[preferred].load <= least * LOAD_FACTOR + LOAD_SLACK:
        assert chosen is fleet[preferred]


@given(fleets, st.text(max_size=8), LOADS)
def test_short_prompts_go_by_load(names: list[str], request_id: str, loads: list[int]) -> None:
    fleet = [Candidate(name, load) for name, load in zip(names, loads, strict=False)]
    assert fleet[choose(fleet, None, request_id)].load == min(one.load for one in fleet)


COUNTS = st.integers(0, 99), st.integers(0, 9)
CANDIDATES = st.builds(Candidate, st.sampled_from(NAMES), *COUNTS, st.booleans())


@given(st.lists(CANDIDATES, min_size=1, unique_by=lambda one: one.name), st.none() | prefixes)
def test_the_unsound_come_last(fleet: list[Candidate], prefix: bytes | None) -> None:
    chosen = fleet[choose(fleet, prefix, "one")]
    assert chosen.is_sound or not any(one.is_sound for one in fleet)
