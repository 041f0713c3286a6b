from hypothesis import given
from hypothesis import strategies as st

from optimist_proposer.core.live_request import LiveRequest
from optimist_proposer.core.request_cache import Residents
from optimist_proposer.core.sources import Prepared
from tests.proposer.holding import prepared
from tests.proposer.text import tokens

SHARED = prepared("shared\n")


def live(name: str, sources: Prepared | None = None) -> LiveRequest:
    return LiveRequest(name, b"generate", sources or prepared(name))


def test_forgets_the_request_used_least_recently() -> None:
    residents = Residents(2, 1_000_000)
    assert residents.put(live("a")) == residents.put(live("b")) == []
    assert residents.get("a") is not None
    assert residents.put(live("c")) == ["b"]
    assert [residents.get(name) is not None for name in "abc"] == [True, False, True]


def test_sources_that_nobody_uses_go_first() -> None:
    one = live("a")
    size = one.num_bytes + one.prepared.num_bytes
    residents = Residents(10, 2 * size + 600)
    residents.put(one)
    residents.pop("a")
    assert residents.get_sources(one.prepared.name) is not None
    residents.put(live("b"))
    residents.put(live("c"))
    assert residents.num_requests == 2
    assert residents.get_sources(one.prepared.name) is None


def test_shared_sources_count_once() -> None:
    residents = Residents(10, 1_000_000)
    for name in "abc":
        residents.put(live(name, SHARED))
    assert residents.num_sources == 1
    assert residents.num_bytes == SHARED.num_bytes + 3 * live("a", SHARED).num_bytes


def test_sources_of_requests_that_were_refused_give_way_to_others() -> None:
    kinds = [prepared(f"{number}\n" * 9) for number in range(8)]
    size = kinds[0].num_bytes
    used = live("a", kinds[0])
    residents = Residents(10, used.num_bytes + 3 * size)
    residents.put(used)
    for kind in kinds[1:]:
        residents.put_sources(kind)
        assert residents.get_sources(kind.name) is kind
        assert residents.num_bytes <= used.num_bytes + 3 * size
    held = [kind for kind in kinds if residents.get_sources(kind.name) is not None]
    assert held == [kinds[0], *kinds[-2:]]


def test_sources_larger_than_the_bound_are_the_only_ones() -> None:
    residents = Residents(10, 1)
    for text in ("one\n", "two\n"):
        residents.put_sources(prepared(text))
    assert residents.num_sources == 1


def test_request_that_grew_counts_with_its_output() -> None:
    residents = Residents(10, 1_000_000)
    request = live("a")
    residents.put(request)
    before = residents.num_bytes
    request.fold(0, tokens("x" * 100))
    residents.put(request)
    assert residents.num_bytes > before
    residents.pop("a")
    assert residents.num_bytes == request.prepared.num_bytes


def test_one_request_is_kept_however_large() -> None:
    residents = Residents(10, 1)
    residents.put(live("a"))
    assert residents.get("a") is not None
    assert residents.put(live("b")) == ["a"]
    assert residents.get("b") is not None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 2)), max_size=40))
def test_bounds_and_bytes_hold_after_any_use(steps: list[tuple[str, int]]) -> None:
    kinds = [prepared("one\n"), prepared("two\n"), prepared("x" * 90)]
    residents = Residents(3, 130_000)
    for name, kind in steps:
        if kind == 2 and residents.get(name) is not None:
            residents.pop(name)
        else:
            residents.put(live(name, kinds[kind]))
        assert residents.num_requests <= 3
        held = [request for name in "abcdef" if (request := residents.get(name))]
        named = [one for one in kinds if residents.get_sources(one.name)]
        assert residents.num_bytes == sum(one.num_bytes for one in held) + sum(
            one.num_bytes for one in named
        )
        assert {id(request.prepared) for request in held} <= {id(one) for one in named}
