"""State without a model, for tests of what works on it."""

from dataclasses import dataclass
from typing import Any

import torch

from optimist_worker.core.fit import FittedRows, fit_rows
from optimist_worker.core.kv import KVPool, LayerSpec
from optimist_worker.core.slot_table import SlotTable
from optimist_worker.core.window_table import WindowTable
from tests.worker.step import admit

NUM_SLOTS = 4
MAX_LEN = 40
SIZE = 4
NUM_BLOCKS = 30
VOCAB = 50
CPU = torch.device("cpu")


@dataclass
class Tables:
    """What a worker of four slots holds."""

    table: SlotTable
    windows: WindowTable
    pool: KVPool

    def admit(self, slot: int, token_ids: list[int], num_blocks: int = 10, **options: Any) -> None:
        """Admits a request and gives it blocks, in falling order."""
        admission = admit(slot, token_ids, **options)
        self.table.admit(admission)
        self.windows.clear(slot)
        held = len(admission.cached_blocks)
        self.table.append_blocks([slot], [self.blocks(slot, num_blocks)[held:]], [held])

    def blocks(self, slot: int, number: int) -> list[int]:
        return [NUM_BLOCKS - 1 - slot - NUM_SLOTS * index for index in range(number)]

    def emit(self, slot: int, tokens: list[int]) -> None:
        """Lets a slot say something, and its windows follow."""
        index = torch.tensor([slot])
        before = self.table.gather(index).num_tokens
        first = int(before)
        self.table.token_ids[slot, first : first + len(tokens)] = torch.tensor(tokens).int()
        self.table.store(index, num_tokens=before + len(tokens))
        number = torch.tensor([len(tokens)])
        self.windows.follow(index, before, torch.tensor([tokens]), number)

    def fit(self, *rows: tuple[int, int, int]) -> FittedRows:
        """Fits rows of slot, known tokens and most drafts."""
        return fit_rows(self.table, *torch.tensor(rows).T)


def make_tables() -> Tables:
    table = SlotTable(NUM_SLOTS, MAX_LEN, SIZE, NUM_BLOCKS, CPU, reads_sizes=True)
    layers = [LayerSpec(1, 2, 2)] * 2
    pool = KVPool(layers, NUM_BLOCKS, SIZE, torch.float64, CPU)
    for number, memory in enumerate((*pool.keys, *pool.values)):
        memory.copy_(torch.arange(memory.numel()).view_as(memory) + number / 8)
    return Tables(table, WindowTable(table, VOCAB), pool)
