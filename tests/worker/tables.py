"""State without a model, for tests of what works on it."""

from dataclasses import dataclass
from typing import Any

import torch

from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.attention.paged_attention import KVPool, LayerSpec
from optimist_worker.core.batch.slot_table import FittedRows, SlotTable, fit_rows
from optimist_worker.core.batch.window_table import WindowDrafts, WindowTable
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
        """Lets a slot say something without any drafts, and its window follow."""
        for token in tokens:
            self.settle([slot], [([], token)], None)

    def settle(
        self, slots: list[int], said: list[tuple[list[int], int]], drafted: WindowDrafts | None
    ) -> torch.Tensor:
        """Lets slots say what a pass makes of drafts; returns how their windows follow.

        Each slot, but for that of padding, which says nothing, is there at most once. What is said
        are the accepted nodes of each slot, and the token after them.
        """
        index = torch.tensor(slots)
        width = 0 if drafted is None else drafted.drafts.width
        token_ids = torch.zeros((len(slots), 1 + width), dtype=torch.int64)
        path = torch.zeros((len(slots), width), dtype=torch.int64)
        before = self.table.gather(index).num_tokens
        number = torch.tensor([len(nodes) + 1 for nodes, _ in said]) * (index < NUM_SLOTS)
        for row, (nodes, token) in enumerate(said):
            tokens = [*(int(drafted.drafts.token_ids[row, n]) for n in nodes if drafted), token]
            token_ids[row, : len(tokens)] = torch.tensor(tokens)
            path[row, : len(nodes)] = torch.tensor(nodes)
            if slots[row] < NUM_SLOTS:
                first = int(before[row])
                columns = slice(first, first + len(tokens))
                self.table.token_ids[slots[row], columns] = torch.tensor(tokens).int()
        self.table.store(index, num_tokens=before + number)
        verdict = Verdict(
            token_ids=token_ids,
            num_accepted=torch.tensor([len(nodes) for nodes, _ in said]),
            path=path if drafted is not None and drafted.drafts.parents is not None else None,
            is_sound=torch.ones(len(slots), dtype=torch.bool),
        )
        indices = None if drafted is None else drafted.indices
        return self.windows.follow(index, indices, verdict, number)

    def fit(self, *rows: tuple[int, int, int]) -> FittedRows:
        """Fits rows of slot, known tokens and most drafts."""
        return fit_rows(torch.tensor(rows).T, self.table)


def make_tables() -> Tables:
    table = SlotTable(NUM_SLOTS, MAX_LEN, SIZE, NUM_BLOCKS, CPU, reads_sizes=True, vocab_size=VOCAB)
    layers = [LayerSpec(1, 2, 2)] * 2
    pool = KVPool(layers, NUM_BLOCKS, SIZE, torch.float64, CPU)
    for number, memory in enumerate((*pool.keys, *pool.values)):
        memory.copy_(torch.arange(memory.numel()).view_as(memory) + number / 8)
    return Tables(table, WindowTable(table, VOCAB), pool)
