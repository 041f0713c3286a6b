"""What lives on the model's device besides weights, and how much of it there is room for."""

import logging
from typing import TYPE_CHECKING

from optimist_common.errors import SetupError
from optimist_worker.core.acceptance.sampling_table import SamplingTable
from optimist_worker.core.attention.paged_attention import KVPool, block_bytes
from optimist_worker.core.batch.slot_table import SlotTable
from optimist_worker.core.batch.window_table import WindowTable
from optimist_worker.core.plan import Admission, Sizes
from optimist_worker.core.recurrence.states import StatePool, state_bytes
from optimist_worker.model.model import Model

if TYPE_CHECKING:
    # What measures a GPU without the services needs no settings.
    from optimist_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)


class DeviceState:
    """Keys, values and states, and what is known of every slot."""

    def __init__(self, model: Model, sizes: Sizes, *, reads_sizes: bool | None = None) -> None:
        """Takes the memory; raises RuntimeError if there is too little.

        Where sizes are read, steps read them from the device and nothing is padded. That waits for
        the device; None: on the CPU, where there is nothing to wait for. Passes through recurrent
        layers always read them.
        """
        self.sizes, self.device = sizes, model.device
        self.recurrent = None
        """States of recurrent layers; None if there are none."""
        if model.states:
            reads_sizes = True
            self.recurrent = StatePool(model.states, sizes.max_num_seqs, model.dtype, model.device)
        self.pool = KVPool(
            model.layers, sizes.num_blocks, sizes.block_size, model.dtype, model.device
        )
        self.table = SlotTable(
            sizes.max_num_seqs,
            sizes.max_model_len,
            sizes.block_size,
            self.pool.trash_block,
            model.device,
            reads_sizes=model.device.type == "cpu" if reads_sizes is None else reads_sizes,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
        )
        self.windows = WindowTable(self.table, model.vocab_size)
        self.sampling = SamplingTable(
            sizes.max_num_seqs, model.vocab_size, model.device, self.table.writes
        )

    def admit(self, admission: Admission) -> None:
        """Gives a slot to a request that has no fault, once `table.writes` are flushed."""
        self.table.admit(admission)
        self.sampling.set(admission.slot, admission.sampling)
        self.windows.clear(admission.slot)
        if self.recurrent is not None:
            self.recurrent.clear(admission.slot)


def plan_memory(
    settings: "WorkerSettings",
    model: Model,
    drafter_block_bytes: int = 0,
    free_bytes: int | None = None,
) -> Sizes:
    """Works out how much to hold: the number of blocks, and the longest sequence.

    The drafter takes `drafter_block_bytes` per block besides. `free_bytes` is the memory for blocks
    where the settings leave that open; None: 512 MiB. States of recurrent layers take their part of
    it first, at most half: there are fewer slots then. Raises SetupError if `max_model_len` is more
    than model or memory allow, or no block fits.
    """
    known = model.max_position_embeddings
    if settings.max_model_len > known:
        raise SetupError(
            f"--max-model-len: {settings.max_model_len} is more than the {known} positions "
            f"that {model.name} knows"
        )
    wanted = settings.max_model_len or known
    size = block_bytes(model.layers, settings.block_size, model.dtype) + drafter_block_bytes
    most = settings.max_num_seqs * -(-wanted // settings.block_size)
    num_seqs, num_blocks = settings.max_num_seqs, settings.num_kv_blocks
    if not num_blocks:
        num_seqs, left = _divide(settings, model, free_bytes)
        num_blocks = min(most, _blocks_in_memory(settings, size, left, free_bytes))
    held = num_blocks * settings.block_size
    if settings.max_model_len > held:
        raise SetupError(
            f"--max-model-len: {settings.max_model_len} tokens do not fit into {num_blocks} "
            f"blocks of {settings.block_size}; raise --kv-memory-mib or --num-kv-blocks"
        )
    return Sizes(
        num_blocks=num_blocks,
        block_size=settings.block_size,
        max_num_seqs=num_seqs,
        max_model_len=min(wanted, held),
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )


_DEFAULT_MIB = 512


def _divide(settings: "WorkerSettings", model: Model, free_bytes: int | None) -> tuple[int, int]:
    """Returns how many slots there are, and how much memory their states leave for blocks."""
    mib = settings.kv_memory_mib or (_DEFAULT_MIB if free_bytes is None else 0)
    memory = mib * 2**20 if mib else free_bytes or 0
    of_slot, num_seqs = state_bytes(model.states, model.dtype), settings.max_num_seqs
    if of_slot and of_slot * num_seqs > memory // 2:
        num_seqs = max(1, memory // 2 // of_slot)
        logger.warning(
            "%d of %d slots: the states of %s take %.1f MiB each, and half of %.0f MiB",
            *(num_seqs, settings.max_num_seqs, model.name, of_slot / 2**20, memory / 2**20),
        )
    return num_seqs, memory - num_seqs * of_slot


def _blocks_in_memory(
    settings: "WorkerSettings", size: int, left: int, free_bytes: int | None
) -> int:
    if left >= size:
        return left // size
    if settings.kv_memory_mib or free_bytes is None:
        raise SetupError(
            f"--kv-memory-mib: one block takes {size} bytes, more than the "
            f"{max(left, 0) / 2**20:.1f} MiB for blocks; raise it"
        )
    raise SetupError(
        f"--gpu-memory-utilization: {settings.gpu_memory_utilization} leaves "
        f"{left / 2**20:.0f} MiB for keys and values, and one block takes {size} bytes; "
        "raise it, or lower --max-num-batched-tokens"
    )
