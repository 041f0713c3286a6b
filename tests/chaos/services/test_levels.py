import pytest

from tests.chaos.services.levels import Levels, excesses

QUIET = {"memory_mib": 80.0, "descriptors": 20, "threads": 9}
BEFORE: Levels = {"scheduler-1": QUIET | {"running": 0, "waiting": 0, "free_blocks": 1000}}
HARMED = {"memory_mib": 200.0, "descriptors": 60, "threads": 40}
HARMED |= {"running": 1, "waiting": 2, "free_blocks": 999}


@pytest.mark.parametrize("name", HARMED)
def test_what_is_not_back_is_named(name: str) -> None:
    after = {"scheduler-1": BEFORE["scheduler-1"] | {name: HARMED[name]}}
    (excess,) = excesses(BEFORE, after)
    assert excess.startswith(f"scheduler-1: {name}")


def test_less_is_back_and_so_is_a_little_more() -> None:
    after = {"scheduler-1": BEFORE["scheduler-1"] | {"memory_mib": 90.0, "descriptors": 12}}
    assert excesses(BEFORE, after) == []
