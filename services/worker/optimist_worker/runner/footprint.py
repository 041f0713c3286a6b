"""How much memory passes take on a GPU, so that what is left can hold keys and values."""

import logging
from dataclasses import replace
from typing import NamedTuple

import torch

from optimist_common.errors import SetupError
from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.plan import MOST_WINDOW_NODES, Admission, Plan, Sizes, WindowUpdate
from optimist_worker.execution.executor import LocalExecutor
from optimist_worker.execution.graphs import MOST_TOKENS
from optimist_worker.execution.step import Step
from optimist_worker.grammar.masks import Masks
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import Model
from optimist_worker.runner.cost import plan_rows
from optimist_worker.runner.runner import Engine, Runner
from optimist_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

_SAMPLED = SamplingParams(temperature=1.0, top_p=0.9, presence_penalty=0.1)
"""Takes the most memory."""


class Meter:
    """Measures the memory of a GPU in bytes, by PyTorch's allocator and by the driver."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    def begin(self) -> None:
        """Notes how much is in use."""
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)

    def most_more(self) -> int:
        """Returns how much more was in use since then, at its most."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - self._before

    def free_and_total(self) -> tuple[int, int]:
        """Returns how much no process holds, and how much there is."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)


def meter_of(device: torch.device) -> Meter | None:
    """Returns what measures the memory of a GPU; None for the CPU."""
    return Meter(device) if device.type == "cuda" else None


def measure_free(settings: WorkerSettings, model: Model) -> int | None:
    """Returns how much memory keys and values may take, in bytes.

    None if the settings say it, the device is no GPU, or the model is a stage of a pipeline, which
    cannot run alone. Raises SetupError if there is too little memory for a pass.
    """
    meter = meter_of(model.device)
    is_given = settings.num_kv_blocks or settings.kv_memory_mib
    if meter is None or is_given or model.cut is not None:
        return None
    most = settings.max_num_batched_tokens
    footprint = _measure_footprint(model, _least_sizes(settings, model), meter)
    graph_share = min(1.0, MOST_TOKENS / most) if settings.cuda_graphs else 0.0
    return bytes_for_blocks(meter, settings.gpu_memory_utilization, footprint, graph_share)


def _measure_footprint(model: Model, sizes: Sizes, meter: Meter) -> int:
    """Runs the largest passes; returns the most memory that one took, in bytes.

    One is of prompts alone. The other verifies drafts in all its rows, and samples.
    """
    try:
        state = DeviceState(model, sizes)
        step = Step(model, state, None, None, AcceptanceRule.COUPLED)
        masks = Masks(model.name, model)
        executor = LocalExecutor(step, masks, model.device, uses_graphs=False)
        runner = Runner(Engine(model, state, executor))
        meter.begin()
        for each in _passes(sizes):
            _run(runner, each)
    except torch.OutOfMemoryError:
        raise _too_large(sizes, "the device has too little memory") from None
    return meter.most_more()


def bytes_for_blocks(meter: Meter, utilization: float, footprint: int, graph_share: float) -> int:
    """Returns how much memory keys and values may take.

    That is what is free now, with the model on the device, but for what is to stay free, for what a
    pass takes (`footprint`), and for the memory of captured steps, which is not given back: the
    largest takes `graph_share` of the largest pass.
    """
    free, total = meter.free_and_total()
    left = int(free - total * (1 - utilization) - footprint * (1 + graph_share))
    gib = 2**30
    logger.info(
        "of %.2f GiB %.2f are free; a pass takes %.2f, so %.2f are for keys and values",
        total / gib,
        free / gib,
        footprint / gib,
        max(left, 0) / gib,
    )
    return left


def _least_sizes(settings: WorkerSettings, model: Model) -> Sizes:
    """Returns sizes with as many blocks as the largest passes need."""
    most = settings.max_num_batched_tokens
    longest = settings.max_model_len or model.max_position_embeddings
    sizes = Sizes(0, settings.block_size, settings.max_num_seqs, min(longest, most + 1), most)
    return replace(sizes, num_blocks=max(each.num_blocks(sizes) for each in _passes(sizes)))


class _Pass(NamedTuple):
    """Rows that are all alike."""

    num_rows: int
    num_known: int
    num_drafts: int

    def num_blocks(self, sizes: Sizes) -> int:
        """Returns the blocks of all rows."""
        return self.num_rows * -(-(self.num_known + self.num_drafts) // sizes.block_size)


def _passes(sizes: Sizes) -> list[_Pass]:
    most = sizes.max_num_batched_tokens
    longest = max(1, min(sizes.max_model_len - 1, most))
    num_drafts = min(MOST_WINDOW_NODES, longest - 1)
    return [
        _Pass(min(sizes.max_num_seqs, most // longest), longest, 0),
        _Pass(min(sizes.max_num_seqs, most // (1 + num_drafts)), 1, num_drafts),
    ]


def _run(runner: Runner, size: _Pass) -> None:
    runner.release_all()
    sizes, slots, known = runner.engine.state.sizes, range(size.num_rows), size.num_known
    admissions = [Admission(slot, f"row {slot}", [0] * known, known, _SAMPLED) for slot in slots]
    windows = [WindowUpdate(slot, 0, [0] * size.num_drafts) for slot in slots if size.num_drafts]
    runner.execute(Plan(sequence=0, admissions=admissions, windows=windows))
    result = runner.execute(plan_rows(*size, range(size.num_blocks(sizes))))
    if result.errors:
        raise _too_large(sizes, next(iter(result.errors.values())))


def _too_large(sizes: Sizes, reason: str) -> SetupError:
    return SetupError(
        f"--max-num-batched-tokens: a pass of {sizes.max_num_batched_tokens} tokens fails, "
        f"lower it: {reason}"
    )
