"""How a model is divided, which rank a process is, how ranks meet, and what cannot be."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.errors import SetupError
from optimist_worker.execution import group
from optimist_worker.execution.group import Group
from optimist_worker.execution.ranks import LOOPBACK, LocalRanks, Ranks, find_ranks
from optimist_worker.model.division import check_division, split_layers
from optimist_worker.settings import WorkerSettings, check_ranks
from tests.stack import free_port

PLAN = {"layers.*.self_attn.q_proj": "colwise"}


@pytest.mark.parametrize(
    ("heads", "kv_heads", "plan", "number", "refusal"),
    [
        (12, 4, PLAN, 4, None),
        (6, None, PLAN, 3, None),
        (12, 4, PLAN, 3, "1, 2 or 4"),
        (8, 1, PLAN, 2, "choose 1$"),
        (8, 8, None, 2, r"has no plan to divide m \(own\)"),
    ],
)
def test_heads_are_shared_or_refused_with_what_can(
    heads: int, kv_heads: int | None, plan: Any, number: int, refusal: str | None
) -> None:
    config: Any = SimpleNamespace(
        num_attention_heads=heads, num_key_value_heads=kv_heads, base_model_tp_plan=plan
    )
    config.model_type = "own"
    with nullcontext() if refusal is None else pytest.raises(SetupError, match=refusal):
        check_division("m", config, number)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "cannot be combined"),
        ({"tensor_parallel_size": 2, "device": "cuda:1"}, "--device: cuda:1 names one device"),
        ({"tensor_parallel_size": 2, "drafter": "quantised"}, "--drafter: quantised copies whole"),
        ({"tensor_parallel_size": 2, "dummy_weights": True}, "--dummy-weights"),
        ({"pipeline_parallel_size": 2, "drafter": "medusa"}, "--drafter: medusa needs the weights"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        check_ranks(WorkerSettings(model="m", **changes), "127.0.0.1")


def test_ranks_meet_on_the_loopback_or_where_no_strangers_are() -> None:
    settings = WorkerSettings(model="m", tensor_parallel_size=2)
    check_ranks(settings, "localhost")
    with pytest.raises(SetupError, match="--insecure: ranks that meet at lws-0 exchange plain"):
        check_ranks(settings, "lws-0")
    check_ranks(settings.model_copy(update={"insecure": True}), "lws-0")


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
        *sums, last = [sum(costs[first:end]) for first, end in edges]
        return max(*sums, last + head, 0)

    inner = tuple(span.stop for span in spans[:-1])
    every = itertools.combinations(range(1, len(costs)), number - 1)
    assert slowest(inner) == min(slowest(bounds) for bounds in every)
    # What cannot be even leaves the last stage least.
    assert split_layers([1] * 3, 0, 2) == [range(2), range(2, 3)]


TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
TORCHRUN |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29512"}
PODS = {"LWS_LEADER_ADDRESS": "lws-0.ns", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ({}, (1, 1), None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (1, 1), None),
        (TORCHRUN, (2, 2), Ranks(3, 4, 1, 2, "10.0.0.1", 29512)),
        (PODS, (4, 1), LocalRanks(2, 2, 4, "lws-0.ns", 29500)),
        (PODS | {"LWS_WORKER_INDEX": "0"}, (1, 2, 40), LocalRanks(0, 1, 2, "lws-0.ns", 40)),
        ({"LWS_GROUP_SIZE": "1"}, (2, 1), LocalRanks(0, 2, 2, LOOPBACK, 0)),
    ],
)
def test_a_process_finds_out_which_ranks_it_is_or_starts(
    environment: dict[str, str], arguments: Any, expected: Ranks | LocalRanks | None
) -> None:
    assert find_ranks(environment, *arguments) == expected


def test_ranks_of_a_stage_are_neighbours() -> None:
    ranks = [Ranks(rank, 4, 0, 2, LOOPBACK, 1) for rank in range(4)]
    assert [each.stage for each in ranks] == [0, 0, 1, 1]
    assert [each.is_leader for each in ranks] == [True, False, False, False]
    assert {each.num_stages for each in ranks} == {2}


@pytest.mark.parametrize(
    ("environment", "sizes", "message"),
    [
        (TORCHRUN, (2, 1), "they need 2 processes, and WORLD_SIZE is 4"),
        (TORCHRUN | {"RANK": "4"}, (4, 1), "RANK: must be a number from 0 to 3, not '4'"),
        (TORCHRUN | {"WORLD_SIZE": "x"}, (4, 1), "WORLD_SIZE: must be a number"),
        (PODS, (3, 1), "3 processes cannot be divided among 2 pods"),
        (PODS | {"LWS_WORKER_INDEX": "2"}, (2, 1), "LWS_WORKER_INDEX: must be a number"),
        (PODS | {"LWS_LEADER_ADDRESS": ""}, (2, 1), "LWS_LEADER_ADDRESS: must be set"),
    ],
)
def test_what_does_not_fit_is_refused(
    environment: dict[str, str], sizes: tuple[int, int], message: str
) -> None:
    with pytest.raises(SetupError, match=r"^[^\n]+$") as error:
        find_ranks(environment, *sizes)
    assert message in str(error.value)


def test_ranks_wait_for_those_that_start_later_before_they_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch gives little time for that."""
    joined: list[int] = []
    join = "torch.distributed.init_process_group"
    monkeypatch.setattr(join, lambda *_, rank, **__: joined.append(rank))
    monkeypatch.setattr("torch.distributed.new_group", lambda **_: None)
    port = free_port()
    first, second, missed = (Ranks(rank, 2, rank, 2, LOOPBACK, port) for rank in (0, 1, 0))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(Group, first, "cpu", 0.1)
        with pytest.raises(TimeoutError):
            waiting.result(0.4)
        assert joined == []
        Group(second, "cpu", 0.1)
        waiting.result(20)
    assert sorted(joined) == [0, 1]
    # Nor do they wait for ever.
    monkeypatch.setattr(group, "JOIN_SECONDS", 0.1)
    missed = replace(missed, master_port=free_port())
    with pytest.raises(SetupError, match=r"cannot join the other ranks at 127\.0\.0\.1:"):
        Group(missed, "cpu", 60.0)
    assert len(joined) == 2
