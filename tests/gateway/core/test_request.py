"""The seeds of a request's choices, and who shares cached prompts with whom."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from optimist_gateway.core.request import cache_salt, choice_seed

SEEDS = st.integers(-(2**63), 2**63 - 1)


@given(SEEDS, st.integers(1, 128))
def test_all_fit_and_differ_also_from_those_of_seeds_close_by(seed: int, near: int) -> None:
    near = (seed + near + 2**63) % 2**64 - 2**63
    seeds = [choice_seed(one, index) for one in (seed, near) for index in range(128)]
    assert all(-(2**63) <= one < 2**63 for one in seeds)
    assert len(set(seeds)) == len(seeds)


def test_the_documented_formula() -> None:
    assert choice_seed(7, 0) == 7
    assert choice_seed(7, 1) == 7 - (2**64 - 0x9E3779B97F4A7C15)
    assert choice_seed(-1, 2) == (2 * 0x9E3779B97F4A7C15 - 1) % 2**64


def test_without_keys_the_request_says_whom_it_shares_with() -> None:
    assert cache_salt("", "") == ""
    assert cache_salt("", "team") == "team"


@given(st.lists(st.tuples(st.text(), st.text()), min_size=2, max_size=4, unique=True))
def test_clients_share_with_themselves_alone(asked: list[tuple[str, str]]) -> None:
    named = [(f"key {client}".replace("\0", ""), salt) for client, salt in asked]
    for one, other in combinations(named, 2):
        assert (cache_salt(*one) == cache_salt(*other)) == (one == other)
    assert all(len(cache_salt(*one)) == 64 for one in named)
