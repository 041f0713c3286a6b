"""A proposer and a drafter together are as fast as the faster of the two, whatever either is worth.

In virtual time, with the real cores of the scheduler and its engine's rules of waiting.
"""

from functools import cache

import pytest

from tests.scheduler.core.mix import Drafting, Passes, Run, Windows, run

WINDOWS = {
    "right": Windows(2),
    "partly right": Windows(1),
    "never right": Windows(0, claim=0.9),
    "absent": Windows(-1),
}
DRAFTERS = {"good": Drafting(0.9, 0.4), "poor": Drafting(0.15, 0.4), "dear": Drafting(0.8, 4.0)}
CPU, GPU = Passes(10, 0.2), Passes(4, 0.01)
CASES = [
    ("good", CPU, 1, 1),
    ("dear", CPU, 1, 1),
    ("good", CPU, 1, 2),
    ("poor", CPU, 1, 2),
    ("good", GPU, 8, 2),
    ("dear", GPU, 8, 2),
    ("dear", CPU, 8, 1),
]
"""Drafters, passes, requests at a time, plans in flight."""


@cache
def alone(windows: Windows | None, drafting: Drafting | None, *how: object) -> Run:
    return run(windows, drafting, *how)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("windows", WINDOWS)
def test_both_are_as_fast_as_the_faster_one(
    windows: str, case: tuple[str, Passes, int, int]
) -> None:
    name, *how = case
    proposed, drafting = WINDOWS[windows], DRAFTERS[name]
    of_windows, of_drafter = alone(proposed, None, *how), alone(None, drafting, *how)
    both = run(proposed, drafting, *how)  # type: ignore[arg-type]
    # Eight short answers that begin together take a pass more or less, which is up to a twentieth.
    least = 0.95 if how[1:] == [8, 2] and windows == "right" else 0.98
    assert both.rate >= least * max(of_windows.rate, of_drafter.rate)
    if (windows, name) == ("partly right", "good"):
        # In the gaps of the one, the other helps.
        assert both.rate >= 1.1 * max(of_windows.rate, of_drafter.rate)
    if windows == "right" and how[1] == 1:
        assert both.drafter_share < 0.01
