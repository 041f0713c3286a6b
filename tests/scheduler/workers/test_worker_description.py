from typing import Any

import pytest

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import to_bytes
from optimist_common.drafts import DraftSource
from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "max_model_len": 64,
    "block_size": 4,
    "num_blocks": 32,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 16,
}


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, (8, 16)),
        ({"max_num_seqs": 3, "max_num_batched_tokens": 9}, (3, 9)),
        ({"max_num_seqs": 99, "max_num_batched_tokens": 99}, (8, 16)),
        ({"max_num_batched_tokens": 5}, (5, 5)),
    ],
)
def test_the_smaller_of_settings_and_worker_holds(
    settings: dict[str, Any], sizes: tuple[int, int]
) -> None:
    message = worker_pb2.DescribeResponse(model="m", eos_token_ids=to_bytes([2]), **SIZES)
    options = {"policy": "priority", "num_speculative_tokens": 7, **settings}
    description = describe_worker(message, SchedulerSettings(**options))
    config = description.config
    assert (config.max_num_seqs, config.max_num_batched_tokens) == sizes
    assert (config.policy, config.num_speculative_tokens) == ("priority", 7)
    assert (config.vocab_size, config.max_model_len) == (50, 64)
    assert (config.block_size, config.num_blocks) == (4, 32)
    assert (description.model, description.eos_token_ids) == ("m", (2,))


def test_settings_that_cannot_take_effect_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    values = SIZES | {"drafter": DraftSource.EAGLE, "max_drafter_tokens": 40}
    message = worker_pb2.DescribeResponse(max_drafter_depth=5, **values)
    config = describe_worker(message, SchedulerSettings(num_speculative_tokens=30)).config
    assert config.max_draft_tokens == 15
    assert list(config.find_cuts()) == [
        "num_speculative_tokens=30: max_num_batched_tokens=16 cuts the drafts to 15",
        "num_speculative_tokens=30 cuts the drafter_tokens=40 of the worker's drafter to 30",
    ]
    wide = SIZES | {"max_num_batched_tokens": 512}
    config = describe_worker(
        worker_pb2.DescribeResponse(**wide), SchedulerSettings(num_speculative_tokens=65)
    ).config
    assert list(config.find_cuts()) == [
        "num_speculative_tokens=65: of a window with branches a pass verifies at most 64 drafts"
    ]
    settings = SchedulerSettings(num_speculative_tokens=15, max_num_seqs=9)
    sizes = worker_pb2.DescribeResponse(**SIZES)
    assert not list(describe_worker(sizes, settings).config.find_cuts())
    assert caplog.messages == ["max_num_seqs=9: the worker's max_num_seqs=8 is less and applies"]


def test_more_drafts_than_a_window_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="less than or equal to 256"):
        SchedulerSettings(num_speculative_tokens=257)


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_is_none_is_named(name: str) -> None:
    message = worker_pb2.DescribeResponse(**{**SIZES, name: 0})
    with pytest.raises(ValueError, match=f"^it says {name} is 0$"):
        describe_worker(message, SchedulerSettings())


@pytest.mark.parametrize(
    ("asked", "reported", "stages"), [(0, 0, 1), (0, 3, 3), (2, 3, 2), (1, 3, 1)]
)
def test_the_worker_tells_its_pipeline_stages_unless_they_are_set(
    asked: int, reported: int, stages: int
) -> None:
    message = worker_pb2.DescribeResponse(num_pipeline_stages=reported, **SIZES)
    settings = SchedulerSettings(num_pipeline_stages=asked, max_plans_in_flight=1)
    config = describe_worker(message, settings).config
    assert (config.num_pipeline_stages, config.plan_depth) == (stages, stages)


def test_stages_that_cannot_be_used_are_refused() -> None:
    message = worker_pb2.DescribeResponse(num_pipeline_stages=2, **SIZES)
    with pytest.raises(ValueError, match="with which --multi-step-count must be 1, not 4"):
        describe_worker(message, SchedulerSettings(multi_step_count=4))
    message.num_pipeline_stages = 17
    with pytest.raises(ValueError, match="it says num_pipeline_stages is 17"):
        describe_worker(message, SchedulerSettings())


def test_the_cost_of_passes_is_read() -> None:
    message = worker_pb2.DescribeResponse(
        cost_num_tokens=to_bytes([1, 64]), cost_us=to_bytes([900, 1500]), **SIZES
    )
    description = describe_worker(message, SchedulerSettings())
    assert description.costs == ((1, 900), (64, 1500))


def test_the_drafter_is_read() -> None:
    shape: dict[str, Any] = {
        "drafter": DraftSource.MEDUSA.value,
        "max_drafter_tokens": 8,
        "max_drafter_depth": 2,
    }
    message = worker_pb2.DescribeResponse(
        drafter_us=to_bytes([90, 95]), is_synthetic=True, **shape, **SIZES
    )
    description = describe_worker(message, SchedulerSettings())
    assert description.config.drafter == Drafter(DraftSource.MEDUSA, 8, 2)
    assert description.drafter_us == (90, 95)
    assert description.is_synthetic
    plain = describe_worker(worker_pb2.DescribeResponse(**SIZES), SchedulerSettings())
    assert (plain.config.drafter, plain.drafter_us, plain.is_synthetic) == (None, (), False)


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"drafter": 1}, "drafter is PREDICTION"),
        ({"max_drafter_depth": 0}, "max_drafter_depth is 0"),
        ({"max_drafter_depth": 9}, "max_drafter_depth is 9"),
        ({"max_drafter_tokens": -1}, "max_drafter_depth"),
        ({"drafter_us": to_bytes([5, 6, 7])}, "3 values of drafter_us"),
        ({"drafter_us": to_bytes([5, 0])}, "drafter_us that are below 1"),
    ],
)
def test_a_drafter_that_is_none_is_refused(values: dict[str, Any], reported: str) -> None:
    shape = {"drafter": 4, "max_drafter_tokens": 8, "max_drafter_depth": 2}
    message = worker_pb2.DescribeResponse(**{**SIZES, **shape, **values})
    with pytest.raises(ValueError, match=f"^it says {reported}|^it says .*{reported}"):
        describe_worker(message, SchedulerSettings())


@pytest.mark.parametrize(
    ("num_tokens", "microseconds"), [([1, 2], [5]), ([2, 1], [5, 6]), ([1, 1], [5, 5]), ([1], [0])]
)
def test_costs_that_are_none_are_refused(num_tokens: list[int], microseconds: list[int]) -> None:
    message = worker_pb2.DescribeResponse(
        cost_num_tokens=to_bytes(num_tokens), cost_us=to_bytes(microseconds), **SIZES
    )
    with pytest.raises(ValueError, match=r"^it says .* cost_"):
        describe_worker(message, SchedulerSettings())


def test_a_later_workers_drafter_is_not_used() -> None:
    shape: dict[str, Any] = {"drafter": 77, "max_drafter_tokens": 8, "max_drafter_depth": 2}
    message = worker_pb2.DescribeResponse(drafter_us=to_bytes([90, 95]), **shape, **SIZES)
    assert describe_worker(message, SchedulerSettings()).config.drafter is None
