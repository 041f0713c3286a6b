"""What the worker says about itself, and the engine's configuration that follows from it."""

import logging
from dataclasses import dataclass

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes
from optimist_common.drafts import DraftSource
from optimist_scheduler.core.requests.config import (
    MAX_PIPELINE_STAGES,
    EngineConfig,
    SchedulingOptions,
)
from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.core.width.costs import PassCosts, Timings
from optimist_scheduler.settings import SchedulerSettings

logger = logging.getLogger(__name__)

_SOURCES = frozenset(map(int, DraftSource))
_SIZES = (
    "vocab_size",
    "max_model_len",
    "block_size",
    "num_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
)


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """What the worker holds, and how it is used."""

    model: str
    config: EngineConfig
    eos_token_ids: tuple[int, ...]
    timings: Timings
    message: worker_pb2.DescribeResponse
    """What the worker says, of which the rest is read."""


def find_mismatch(worker: WorkerDescription, other: WorkerDescription) -> str | None:
    """Returns what keeps two workers from doing the same requests; None if nothing does."""
    # Where the weights lie may differ.
    models = [each.model.rstrip("/").rpartition("/")[2] for each in (worker, other)]
    for name, mine, others in (
        ("model", models[0], models[1]),
        ("vocab_size", worker.config.vocab_size, other.config.vocab_size),
        ("eos_token_ids", worker.eos_token_ids, other.eos_token_ids),
    ):
        if mine != others:
            return f"its {name} is {mine}, not {others} as that"
    return None


def describe_worker(
    message: worker_pb2.DescribeResponse, settings: SchedulerSettings
) -> WorkerDescription:
    """Reads the worker's description; raises ValueError if nothing could run with it."""
    sizes = {name: getattr(message, name) for name in _SIZES}
    for name, value in sizes.items():
        _require(value >= 1, f"{name} is {value}")
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        if wanted := getattr(settings, name):
            if wanted > sizes[name]:
                text = "%s=%d: the worker's %s=%d is less and applies"
                logger.warning(text, name, wanted, name, sizes[name])
            sizes[name] = min(wanted, sizes[name])
    # Each request gets a token in each pass.
    sizes["max_num_seqs"] = min(sizes["max_num_seqs"], sizes["max_num_batched_tokens"])
    options = settings.model_dump(include=set(SchedulingOptions.model_fields))
    options["num_pipeline_stages"] = _num_stages(message, settings)
    for name in ("row_key_ps", "token_key_ps", "slot_state_bytes"):
        _require(getattr(message, name) >= 0, f"{name} is {getattr(message, name)}")
    if message.slot_state_bytes and options["enable_prefix_caching"]:
        logger.info("equal beginnings are not shared: the model's states are not in blocks")
        options["enable_prefix_caching"] = False
    return WorkerDescription(
        message.model,
        EngineConfig(
            **options, **sizes, drafter=_drafter(message), pads_passes=message.pads_passes
        ),
        tuple(from_bytes(message.eos_token_ids).tolist()),
        _timings(message),
        message,
    )


def _require(is_right: bool, fault: str) -> None:
    if not is_right:
        raise ValueError(f"it says {fault}")


def _num_stages(message: worker_pb2.DescribeResponse, settings: SchedulerSettings) -> int:
    number = settings.num_pipeline_stages or max(message.num_pipeline_stages, 1)
    _require(number <= MAX_PIPELINE_STAGES, f"num_pipeline_stages is {number}")
    return number


def _drafter(message: worker_pb2.DescribeResponse) -> Drafter | None:
    if message.drafter not in _SOURCES:
        # A later worker's; without being asked it drafts nothing.
        logger.warning("the worker's drafter is not used: its kind %d is unknown", message.drafter)
        return None
    source = DraftSource(message.drafter)
    if source is DraftSource.TARGET:
        return None
    needs_one = source not in (DraftSource.PREDICTION, DraftSource.FORM)
    _require(needs_one, f"drafter is {source.name}, which needs none")
    num_tokens, depth = message.max_drafter_tokens, message.max_drafter_depth
    shape = f"max_drafter_depth is {depth} with max_drafter_tokens {num_tokens}"
    _require(1 <= depth <= num_tokens, shape)
    return Drafter(source, num_tokens, depth)


def _timings(message: worker_pb2.DescribeResponse) -> Timings:
    times, depth = from_bytes(message.drafter_us).tolist(), message.max_drafter_depth
    # A slow worker has not timed the deepest.
    fault = f"{len(times)} values of drafter_us for max_drafter_depth {depth}"
    _require(len(times) <= depth, fault)
    _require(min(times, default=1) >= 1, "drafter_us that are below 1")
    timings = Timings(
        from_bytes(message.cost_num_tokens).tolist(),
        from_bytes(message.cost_us).tolist(),
        times,
        message.row_key_ps / 1e3,
        message.token_key_ps / 1e3,
    )
    try:
        PassCosts(timings)
    except ValueError as error:
        raise ValueError(f"it says what cannot be: {error}") from None
    return timings
