from hypothesis import given
from hypothesis import strategies as st

from optimist_proposer.core.lru import Lru


def test_forgets_what_was_used_least_recently() -> None:
    lru: Lru[str, int] = Lru(max_items=2, max_bytes=100)
    lru.put("a", 1, 1)
    lru.put("b", 2, 1)
    assert lru.get("a") == 1
    assert lru.put("c", 3, 1) == 1
    assert (lru.get("a"), lru.get("b"), lru.get("c")) == (1, None, 3)


def test_one_value_may_be_larger_than_all_may_be() -> None:
    lru: Lru[str, int] = Lru(max_items=2, max_bytes=100)
    lru.put("a", 1, 50)
    assert lru.put("b", 2, 500) == 1
    assert lru.get("b") == 2
    assert lru.put("c", 3, 1) == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40), st.booleans())))
def test_bounds_hold_and_bytes_add_up(steps: list[tuple[int, int, bool]]) -> None:
    lru: Lru[int, int] = Lru(max_items=4, max_bytes=100)
    for key, size, drop in steps:
        if drop:
            lru.pop(key)
            assert lru.get(key) is None
        else:
            lru.put(key, size, size)
            assert lru.get(key) == size
        held = [value for value in map(lru.get, range(10)) if value is not None]
        assert lru.num_bytes == sum(held) <= 100
        assert len(lru) == len(held) <= 4
