"""Everything that lives on the model's device besides weights."""

from dataclasses import dataclass

from optimist_worker.core.acceptance.sampling_table import SamplingTable
from optimist_worker.core.attention.kv import KVPool
from optimist_worker.core.batch.slot_table import SlotTable
from optimist_worker.core.batch.window_table import WindowTable
from optimist_worker.model.model import Model


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a worker holds."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int


class DeviceState:
    """Keys and values, and what is known of every slot."""

    def __init__(self, model: Model, sizes: Sizes, *, reads_sizes: bool | None = None) -> None:
        """Takes the memory.

        Args:
            model: The target.
            sizes: How much to hold.
            reads_sizes: Whether steps read sizes from the device and nothing is padded. That waits
                for the device; None: on the CPU, where there is nothing to wait for.

        Raises:
            RuntimeError: There is too little memory.
        """
        self.sizes, self.device = sizes, model.device
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
        )
        self.windows = WindowTable(self.table, model.vocab_size)
        self.sampling = SamplingTable(sizes.max_num_seqs, model.vocab_size, model.device)
