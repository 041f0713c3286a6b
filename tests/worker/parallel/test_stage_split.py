import itertools

from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.model.division import split_layers

COSTS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def test_equal_layers_are_shared_evenly() -> None:
    assert split_layers([1] * 8, 0, 4) == [range(2), range(2, 4), range(4, 6), range(6, 8)]


def test_a_heavy_head_leaves_the_last_stage_fewer_layers() -> None:
    assert split_layers([10] * 8, 40, 2) == [range(6), range(6, 8)]


def test_what_cannot_be_even_leaves_the_last_stage_least() -> None:
    assert split_layers([1] * 3, 0, 2) == [range(2), range(2, 3)]


@given(COSTS, st.integers(0, 30), st.data())
def test_no_other_division_has_a_faster_slowest_stage(
    costs: list[int], head: int, data: st.DataObject
) -> None:
    number = data.draw(st.integers(1, len(costs)))
    spans = split_layers(costs, head, number)
    assert [index for span in spans for index in span] == list(range(len(costs)))
    assert len(spans) == number
    assert all(spans)

    def slowest(bounds: tuple[int, ...]) -> int:
        edges = itertools.pairwise((0, *bounds, len(costs)))
        sums = [sum(costs[first:end]) for first, end in edges]
        return max(*sums[:-1], sums[-1] + head) if len(sums) > 1 else sums[0] + head

    inner = tuple(span.stop for span in spans[:-1])
    every = itertools.combinations(range(1, len(costs)), number - 1)
    assert slowest(inner) == min(slowest(bounds) for bounds in every)
