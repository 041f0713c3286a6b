"""What a service holds more of than before is found."""

import pytest

from tests.chaos.services.levels import Levels, excesses

QUIET = {"memory_mib": 80.0, "descriptors": 20, "threads": 9}
IDLE = {"requests_running": 0, "requests_waiting": 0, "kv_cache_free_blocks": 1000}
BEFORE: Levels = {"scheduler-1": QUIET | IDLE}
HARMED = {"memory_mib": 200.0, "descriptors": 60, "threads": 40}
HARMED |= {
    "requests_running": 1,
    "requests_waiting": 2,
    "kv_cache_free_blocks": 999,
}


@pytest.mark.parametrize("name", HARMED)
def test_what_is_not_back_is_named(name: str) -> None:
    after = {"scheduler-1": BEFORE["scheduler-1"] | {name: HARMED[name]}}
    (excess,) = excesses(BEFORE, after)
    assert excess.startswith(f"scheduler-1: {name}")


def test_less_is_back_and_so_is_a_little_more() -> None:
    after = {"scheduler-1": BEFORE["scheduler-1"] | {"memory_mib": 90.0, "descriptors": 12}}
    assert excesses(BEFORE, after) == []
