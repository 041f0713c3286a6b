"""The cache stays within its bounds and forgets what was used least recently."""

from hypothesis import given
from hypothesis import strategies as st

from optimist_proposer.core.live_requests import RequestCache
from tests.proposer.holding import live, prepared
from tests.proposer.text import tokens


def test_forgets_the_request_used_least_recently() -> None:
    cache = RequestCache(2, 1_000_000)
    assert cache.put(live("a")) == cache.put(live("b")) == []
    assert cache.get("a") is not None
    assert cache.put(live("c")) == ["b"]
    assert [cache.get(name) is not None for name in "abc"] == [True, False, True]


def test_the_last_of_requests_and_of_sources_are_kept_however_large() -> None:
    cache = RequestCache(10, 1)
    assert cache.put(live("a")) == []
    assert cache.put(live("b")) == ["a"]
    assert cache.get("b") is not None
    cache.pop("b")
    for text in ("one\n", "two\n"):
        cache.put_sources(prepared(text))
    assert cache.num_sources == 1


def test_sources_of_requests_that_were_refused_give_way_to_others() -> None:
    kinds = [prepared(f"{number}\n" * 9) for number in range(8)]
    size = kinds[0].num_bytes
    used = live("a", sources=kinds[0])
    cache = RequestCache(10, used.num_bytes + 3 * size)
    cache.put(used)
    for kind in kinds[1:]:
        cache.put_sources(kind)
        assert cache.get_sources(kind.name) is kind
        assert cache.num_bytes <= used.num_bytes + 3 * size
    held = [kind for kind in kinds if cache.get_sources(kind.name) is not None]
    assert held == [kinds[0], *kinds[-2:]]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3)), max_size=40))
def test_bounds_and_bytes_hold_after_any_use(steps: list[tuple[str, int]]) -> None:
    kinds = [prepared("one\n"), prepared("two\n"), prepared("x" * 90)]
    cache = RequestCache(3, 28_000)
    for name, kind in steps:
        request = cache.get(name)
        if kind == 2:
            cache.pop(name)
        elif kind == 3 and request is not None:
            request.fold(request.num_known, tokens("x" * 9))
            cache.put(request)
        elif kind < 2:
            cache.put(live(name, sources=kinds[kind]))
        assert cache.num_requests <= 3
        held = [request for name in "abcdef" if (request := cache.get(name))]
        named = [one for one in kinds if cache.get_sources(one.name)]
        assert cache.num_sources == len(named)
        assert cache.num_bytes == sum(one.num_bytes for one in held) + sum(
            one.num_bytes for one in named
        )
        assert {id(request.prepared) for request in held} <= {id(one) for one in named}
