"""What a worker says of itself is read, checked and kept to."""

from typing import Any

import pytest

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import to_bytes
from optimist_common.drafts import DraftSource
from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.core.width.costs import Timings
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import WorkerDescription, describe_worker

SIZES: dict[str, Any] = {"vocab_size": 50, "max_model_len": 64, "block_size": 4, "num_blocks": 32}
SIZES |= {"max_num_seqs": 8, "max_num_batched_tokens": 16}


def describe(settings: dict[str, Any] | None = None, /, **values: Any) -> WorkerDescription:
    """Reads what a worker says that has these values besides its sizes, or instead of them."""
    message = worker_pb2.DescribeResponse(**{**SIZES, **values})
    return describe_worker(message, SchedulerSettings(**(settings or {})))


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
    options = {"policy": "priority", "num_speculative_tokens": 7, **settings}
    description = describe(options, model="m", eos_token_ids=to_bytes([2]))
    config = description.config
    assert (config.max_num_seqs, config.max_num_batched_tokens) == sizes
    assert (config.policy, config.num_speculative_tokens) == ("priority", 7)
    assert (config.vocab_size, config.max_model_len) == (50, 64)
    assert (config.block_size, config.num_blocks) == (4, 32)
    assert (description.model, description.eos_token_ids) == ("m", (2,))


def test_the_drafter_is_read() -> None:
    shape = {"drafter": DraftSource.MEDUSA, "max_drafter_tokens": 8, "max_drafter_depth": 2}
    costs = {"cost_num_tokens": to_bytes([1, 64]), "cost_us": to_bytes([900, 1500])}
    description = describe(drafter_us=to_bytes([90, 95]), **shape, **costs)
    assert description.timings == Timings([1, 64], [900, 1500], [90, 95])
    assert description.config.drafter == Drafter(DraftSource.MEDUSA, 8, 2)
    plain = describe()
    assert (plain.config.drafter, plain.timings.drafter_us) == (None, [])
    # That of a later worker is not used.
    later = describe(drafter_us=to_bytes([90, 95]), **{**shape, "drafter": 77})
    assert later.config.drafter is None
    padded = describe(pads_passes=True)
    assert [each.config.pads_passes for each in (plain, padded)] == [False, True]


@pytest.mark.parametrize("wanted", [True, False])
def test_beginnings_are_not_shared_where_states_are_not_in_blocks(
    wanted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"enable_prefix_caching": wanted}
    with caplog.at_level("INFO"):
        assert not describe(settings, slot_state_bytes=4096).config.enable_prefix_caching
    assert ("equal beginnings are not shared" in caplog.text) == wanted
    assert describe(settings).config.enable_prefix_caching == wanted


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"drafter": 1}, "drafter is PREDICTION"),
        ({"drafter": 7}, "drafter is FORM"),
        ({"num_pipeline_stages": 17}, "num_pipeline_stages is 17"),
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"slot_state_bytes": -1}, "slot_state_bytes is -1"),
        ({"max_drafter_depth": 0}, "max_drafter_depth is 0"),
        ({"max_drafter_depth": 9}, "max_drafter_depth is 9"),
        ({"max_drafter_tokens": -1}, "max_drafter_depth"),
        ({"drafter_us": to_bytes([5, 6, 7])}, "3 values of drafter_us"),
        ({"drafter_us": to_bytes([5, 0])}, "drafter_us that are below 1"),
        *(
            ({"cost_num_tokens": to_bytes(num_tokens), "cost_us": to_bytes(us)}, "cost_")
            for num_tokens, us in (([1, 2], [5]), ([2, 1], [5, 6]), ([1, 1], [5, 5]), ([1], [0]))
        ),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], reported: str) -> None:
    shape = {"drafter": 4, "max_drafter_tokens": 8, "max_drafter_depth": 2}
    with pytest.raises(ValueError, match=f"^it says {reported}|^it says .* {reported}"):
        describe(**{**shape, **values})
