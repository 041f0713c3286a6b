"""How a model is divided among ranks and stages, and what cannot be."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.errors import SetupError
from optimist_worker.model.division import check_division, split_layers
from optimist_worker.settings import WorkerSettings, check_ranks


def config(heads: int, kv_heads: int | None, plan: dict[str, str] | None) -> Any:
    return SimpleNamespace(
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        base_model_tp_plan=plan,
        model_type="own",
    )


PLAN = {"layers.*.self_attn.q_proj": "colwise"}


@pytest.mark.parametrize(("heads", "kv_heads", "number"), [(8, 2, 2), (12, 4, 4), (6, None, 3)])
def test_heads_that_can_be_shared_are(heads: int, kv_heads: int | None, number: int) -> None:
    check_division("m", config(heads, kv_heads, PLAN), number)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "number", "choice"),
    [(8, 2, 4, "1 or 2"), (12, 4, 3, "1, 2 or 4"), (5, 5, 2, "1 or 5"), (8, 1, 2, "choose 1$")],
)
def test_heads_that_cannot_are_refused_with_what_can(
    heads: int, kv_heads: int, number: int, choice: str
) -> None:
    with pytest.raises(SetupError, match=choice):
        check_division("m", config(heads, kv_heads, PLAN), number)


def test_a_model_without_a_plan_is_refused() -> None:
    with pytest.raises(SetupError, match="has no plan to divide m \\(own\\)"):
        check_division("m", config(8, 8, None), 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "cannot be combined"),
        ({"tensor_parallel_size": 2, "device": "cuda:1"}, "--device: cuda:1 names one device"),
        ({"tensor_parallel_size": 2, "drafter": "quantised"}, "--drafter: quantised copies whole"),
        ({"tensor_parallel_size": 2, "dummy_weights": True}, "--dummy-weights"),
        ({"pipeline_parallel_size": 2, "drafter": "medusa"}, "--drafter: medusa needs the weights"),
        ({"pipeline_parallel_size": 2, "drafter": "quantised"}, "--drafter: quantised needs"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        check_ranks(WorkerSettings(model="m", **changes), "127.0.0.1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor_parallel_size": 2, "drafter": "medusa"}, "--drafter medusa has no layers"),
        ({"tensor_parallel_size": 4, "drafter": "draft_model"}, "must be 1 or --tensor-parallel"),
        ({"drafter": "draft_model"}, "--tensor-parallel-size, which is 1"),
    ],
)
def test_a_draft_model_is_shared_by_all_ranks_or_none(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        WorkerSettings(model="m", drafter_tensor_parallel_size=2, **changes)


def test_ranks_meet_on_the_loopback_or_where_no_strangers_are() -> None:
    settings = WorkerSettings(model="m", tensor_parallel_size=2)
    check_ranks(settings, "localhost")
    with pytest.raises(SetupError, match="--insecure: ranks that meet at lws-0 exchange plain"):
        check_ranks(settings, "lws-0")
    check_ranks(settings.model_copy(update={"insecure": True}), "lws-0")


def test_what_cannot_be_even_leaves_the_last_stage_least() -> None:
    assert split_layers([1] * 3, 0, 2) == [range(2), range(2, 3)]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 30), st.data())
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
