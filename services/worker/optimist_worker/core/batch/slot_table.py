"""The state of all requests that hold a slot, as tensors on the model's device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from optimist_worker.core.acceptance.verdict import LateTokens
from optimist_worker.core.operation import Operation
from optimist_worker.core.plan import Admission
from optimist_worker.core.transfers import Writes

MOST_STOP_TOKENS = 32
"""Stop tokens that are looked for per request; after any further one a request just runs on until
its scheduler, which knows them all, takes it out."""


MOST_LATE_TOKENS = 256
"""Stop tokens of a request with a least number of tokens; more are refused."""


class SlotColumns(NamedTuple):
    """What is known of some slots, int64 `[num_rows]` each."""

    num_tokens: torch.Tensor
    """Prompt and verified output."""
    num_computed_tokens: torch.Tensor
    """Tokens whose keys and values are valid; a rollback lowers nothing but this."""
    has_ended: torch.Tensor
    """1 once a stop token or `max_length` was reached."""
    num_prompt_tokens: torch.Tensor
    max_length: torch.Tensor
    """Length at which the request ends, in tokens."""
    min_length: torch.Tensor
    """Length below which no stop token may be chosen, in tokens."""
    capacity: torch.Tensor
    """Tokens that the slot's blocks hold."""


class SlotTable:
    """One row per slot and one more, which padding names; the truth every plan is relative to.

    Everything keeps its address, so that captured graphs may refer to it.
    """

    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        block_size: int,
        trash_block: int,
        device: torch.device,
        *,
        reads_sizes: bool,
        vocab_size: int,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        """Makes a table of free slots; row `num_slots` is the one for padding.

        Nobody reads from `trash_block`. `reads_sizes` says whether sizes that depend on the state
        are read from the device; else the bounds that the host knows take their place. End tokens
        of the model may not be chosen below the least length, whether they end the request or not.
        """
        self.num_slots, self.block_size, self.device = num_slots, block_size, device
        self.writes = Writes(device)
        """What becomes of admissions and new blocks once it is flushed."""
        self.trash_block, self.reads_sizes = trash_block, reads_sizes
        num_rows = num_slots + 1
        self.columns = torch.zeros(
            (len(SlotColumns._fields), num_rows), dtype=torch.int64, device=device
        )
        self.token_ids = torch.zeros((num_rows, max_model_len), dtype=torch.int32, device=device)
        # One column more than a request can fill.
        num_blocks = -(-max_model_len // block_size) + 1
        self.block_tables = torch.full(
            (num_rows, num_blocks), trash_block, dtype=torch.int32, device=device
        )
        self.stop_token_ids = torch.full(
            (num_rows, MOST_STOP_TOKENS), -1, dtype=torch.int64, device=device
        )
        self.may_draft = torch.ones(num_rows, dtype=torch.int64, device=device)
        """0 for slots that a drafter knows too little about, see `GuardedDrafter`."""
        self._vocab_size, self._eos_token_ids = vocab_size, eos_token_ids
        self._late_token_ids = torch.zeros(
            (num_rows, MOST_LATE_TOKENS + len(eos_token_ids)), dtype=torch.int64, device=device
        )

    def admit(self, admission: Admission) -> None:
        """Gives a slot to a request whose admission has no fault."""
        slot, num_tokens = admission.slot, len(admission.token_ids)
        num_cached = len(admission.cached_blocks) * self.block_size
        late = []
        if admission.min_length:
            stops = [*admission.stop_token_ids, *self._eos_token_ids]
            late = [token_id for token_id in stops if 0 <= token_id < self._vocab_size]
        values = {
            "num_tokens": num_tokens,
            "num_computed_tokens": num_cached,
            "has_ended": 0,
            "num_prompt_tokens": admission.num_prompt_tokens,
            "max_length": admission.max_length or self.token_ids.shape[1],
            "min_length": admission.min_length if late else 0,
            "capacity": num_cached,
        }
        stops = admission.stop_token_ids[:MOST_STOP_TOKENS]
        stops = stops + [-1] * (MOST_STOP_TOKENS - len(stops))
        put = self.writes.put
        put(self.columns[:, slot], [values[name] for name in SlotColumns._fields])
        put(self.token_ids[slot, :num_tokens], admission.token_ids)
        put(self.stop_token_ids[slot], stops)
        if late:
            # The first one again in place of those that are missing.
            late += [late[0]] * (self._late_token_ids.shape[1] - len(late))
            put(self._late_token_ids[slot], late)
        # What the slot's last holder had may be another's by now.
        num_columns = self.block_tables.shape[1]
        table = np.full(num_columns, self.trash_block, np.int32)
        cached = admission.cached_blocks[: num_columns - 1]
        table[: len(cached)] = cached
        put(self.block_tables[slot], table)

    def late_tokens(self, rows: "FittedRows") -> LateTokens:
        """Returns what may not be chosen below the least lengths of some rows."""
        return LateTokens(self._late_token_ids[rows.slots], rows.columns.min_length)

    def append_blocks(self, slots: list[int], blocks: list[list[int]], num_held: list[int]) -> None:
        """Appends blocks to the tables of slots, each named once, that held `num_held` blocks.

        Those after the longest sequence are of no use.
        """
        capacity = self.columns[SlotColumns._fields.index("capacity")]
        for slot, new, first in zip(slots, blocks, num_held, strict=True):
            if not new:
                continue
            # The last column stays trash.
            used = new[: max(0, self.block_tables.shape[1] - 1 - first)]
            self.writes.put(self.block_tables[slot, first : first + len(used)], used)
            end = first + len(new)
            self.writes.put(capacity[slot : slot + 1], [end * self.block_size])

    def gather(self, slots: torch.Tensor) -> SlotColumns:
        """Returns the columns of some slots."""
        return SlotColumns(*self.columns.index_select(1, slots))

    def store(self, slots: torch.Tensor, **columns: torch.Tensor) -> None:
        """Writes neighbouring columns of some slots; padding may name the last several times."""
        first = SlotColumns._fields.index(next(iter(columns)))
        last = first + len(columns)
        self.columns[first:last].index_copy_(1, slots, torch.stack(list(columns.values())))

    def read_tokens(self, slots: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Returns the tokens at some indices, int64; one out of range reads the nearest there is.

        The slots are `[num_rows]` for indices `[num_rows, n]`, or of the indices' shape.
        """
        if slots.dim() < indices.dim():
            slots = slots[:, None]
        return self.token_ids[slots, indices.clamp(0, self.token_ids.shape[1] - 1)].long()

    def kv_indices(self, slots: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Returns where tokens of slots lie in the KV pool, int64; after the table in the trash."""
        blocks = indices // self.block_size
        # The last column is trash.
        ids = self.block_tables[slots, blocks.clamp(max=self.block_tables.shape[1] - 1)]
        return ids * self.block_size + indices % self.block_size


@dataclass(slots=True)
class FittedRows:
    """The rows of a step, `[num_rows]` each."""

    slots: torch.Tensor
    columns: SlotColumns
    """As they are before the step."""
    num_known_tokens: torch.Tensor
    """Known tokens to feed; 0 for a row that does not run."""
    ends: torch.Tensor
    """Index after the last known token fed; the first draft's."""
    emits: torch.Tensor
    """Whether the known tokens reach the row's last one, so that tokens come of it."""
    limits: torch.Tensor
    """Most drafts after them."""
    drafter_limits: torch.Tensor
    """Most of them that are not from windows."""
    is_short: torch.Tensor
    """Whether the row does not run because its blocks do not hold its known tokens."""

    @property
    def starts(self) -> torch.Tensor:
        """Index of the first token fed."""
        return self.columns.num_computed_tokens


def fit_rows(plan: torch.Tensor, table: SlotTable) -> FittedRows:
    """Fits a plan to the truth: slots, known tokens and most drafts, int64 `[3, num_rows]`.

    Known tokens beyond a row's last one do not exist and are left out. Drafts are verified only
    after the last known token, as far as blocks and `max_length` reach. Requests that have ended
    do not run.
    """
    slots, num_known, num_drafts = plan
    columns = table.gather(slots)
    left = columns.num_tokens - columns.num_computed_tokens
    wanted = torch.minimum(num_known, left) * (1 - columns.has_ended)
    is_short = columns.num_computed_tokens + wanted > columns.capacity
    known = wanted.masked_fill(is_short, 0)
    ends = columns.num_computed_tokens + known
    emits = (known == left) & (known > 0)
    room = torch.minimum(columns.capacity, columns.max_length - 1) - ends
    limits = torch.minimum(num_drafts, room).clamp(min=0) * emits
    drafter_limits = limits * table.may_draft[slots]
    return FittedRows(slots, columns, known, ends, emits, limits, drafter_limits, is_short)


FIT = Operation("fit", fit_rows, "optimist_worker.core.batch.row_kernels:fit_rows")
