"""What the output of each slot is expected to be: a window, and alternatives to it.

A window lies at its places in the sequence, on a plane of its own: `token_ids[plane, slot, place]`.
Plane 0 is what is drafted from first; the others depart from it at their `starts`. A plane whose
`ends` is not behind the verified tokens has nothing to offer.
"""

import torch

from optimist_common.draft_source import DraftSource
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.plan import MOST_ALTERNATIVES, WindowUpdate
from optimist_worker.core.slot_table import SlotColumns, SlotTable, read, send

MOST_ALTERNATIVE_NODES = 8
"""Drafts taken of one alternative in one pass."""


class WindowTable:
    """Windows of all slots; row `num_slots` is the one for padding."""

    def __init__(self, table: SlotTable, vocab_size: int) -> None:
        """Makes a table of empty windows; tokens are 0 to `vocab_size - 1`."""
        self._table, self._vocab_size = table, vocab_size
        num_rows, self._length = table.token_ids.shape
        self.token_ids = torch.zeros_like(table.token_ids)[None]
        self.starts = torch.zeros((1, num_rows), dtype=torch.int64, device=table.device)
        self.ends = torch.zeros_like(self.starts)

    @property
    def has_alternatives(self) -> bool:
        """Whether any window ever had one; until then only plane 0 exists."""
        return len(self.ends) > 1

    def clear(self, slot: int) -> None:
        """Forgets a slot's window."""
        self.ends[:, slot] = 0

    def set(self, update: WindowUpdate) -> None:
        """Replaces a slot's window; what the output already contradicts has nothing to offer."""
        slot = update.slot
        self.clear(slot)
        num_prompt = self._table.gather(self._index([slot])).num_prompt_tokens
        first = num_prompt + update.base
        self._place(0, slot, first, first, update.token_ids)
        if not update.alternatives:
            return
        if not self.has_alternatives:
            self._add_planes()
        for plane, alternative in enumerate(update.alternatives[:MOST_ALTERNATIVES], 1):
            tokens = update.token_ids[: alternative.offset] + alternative.token_ids
            self._place(plane, slot, first, first + alternative.offset, tokens)
        # The output may have left the window, and followed an alternative, since it was made.
        index = self._index([slot])
        self._promote(index, self._table.gather(index).num_tokens)

    def draft(
        self, slots: torch.Tensor, columns: SlotColumns, limits: torch.Tensor, width: int
    ) -> Drafts:
        """Drafts from plane 0, a chain per row.

        Args:
            slots: `[num_rows]`.
            columns: Of these slots.
            limits: Most drafts, `[num_rows]`.
            width: Most drafts of any row, known to the host.
        """
        length = columns.num_tokens
        number = torch.minimum(limits, (self.ends[0, slots] - length).clamp(min=0))
        number = number.clamp(max=width)
        places = length[:, None] + torch.arange(width, device=slots.device)
        return Drafts(
            token_ids=read(self.token_ids[0], slots, places),
            num_tokens=number,
            sources=torch.where(number > 0, int(DraftSource.PREDICTION), 0),
        )

    def count_left(self, slots: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Returns how many tokens plane 0 has behind the verified ones, `[num_rows]`."""
        return (self.ends[0, slots] - lengths).clamp(min=0)

    def follow(
        self, slots: torch.Tensor, first: torch.Tensor, emitted: torch.Tensor, number: torch.Tensor
    ) -> None:
        """Compares emitted tokens with the windows; what they contradict is dropped.

        Where plane 0 is contradicted and an alternative is not, that takes its place.

        Args:
            slots: `[num_rows]`; padding may name the last row several times.
            first: Place of the first emitted token, `[num_rows]`.
            emitted: `[num_rows, width]`.
            number: How many there are, `[num_rows]`.
        """
        offsets = torch.arange(emitted.shape[1], device=slots.device)
        places = first[:, None] + offsets
        ends = self.ends[:, slots]
        is_new = offsets < number[:, None]
        for plane in range(len(ends)):
            wrong = read(self.token_ids[plane], slots, places) != emitted
            wrong &= is_new & (places < ends[plane][:, None])
            if plane:
                # Before its start an alternative is what plane 0 is.
                wrong |= is_new & (places >= ends[plane][:, None])
            ends[plane] = torch.where(wrong.any(1), 0, ends[plane])
        self.ends.index_copy_(1, slots, ends)
        if self.has_alternatives:
            self._promote(slots, first + number)

    def _promote(self, slots: torch.Tensor, lengths: torch.Tensor) -> None:
        """Makes the first alternative that the output follows a slot's window, if that is over."""
        ends, starts = self.ends[:, slots], self.starts[:, slots]
        is_followed = (ends > lengths) & (starts <= lengths)
        is_followed[0] = False
        chosen = is_followed.int().argmax(0)
        chosen = torch.where(ends[0] > lengths, 0, chosen)
        self.token_ids[0].index_copy_(0, slots, self.token_ids[chosen, slots])
        rows = torch.arange(len(slots), device=slots.device)
        self.ends[0].index_copy_(0, slots, ends[chosen, rows])
        # An alternative departs from what was plane 0.
        others = torch.where((chosen > 0) | (starts[1:] < lengths), 0, ends[1:])
        self.ends[1:].index_copy_(1, slots, others)

    def _place(
        self, plane: int, slot: int, first: torch.Tensor, start: torch.Tensor, tokens: list[int]
    ) -> None:
        """Writes tokens from place `first` on, unless the output there says otherwise."""
        if not tokens or min(tokens) < 0 or max(tokens) >= self._vocab_size:
            # Nothing that the model could say.
            return
        index = self._index([slot])
        new = send(torch.tensor(tokens, dtype=torch.int64), self._table.device)
        places = first + torch.arange(len(tokens), device=new.device)
        inside = places < self._length
        # What lies behind the longest sequence is written over the last place, then mended.
        clamped = places.clamp(max=self._length - 1)
        last = (self._length - 1 - first).clamp(0, len(tokens) - 1)
        values = torch.where(inside, new, new[last])
        self.token_ids[plane].index_put_((index.expand(len(tokens)), clamped), values.int())
        num_tokens = self._table.gather(index).num_tokens
        known = (places < num_tokens) & inside
        agrees = ~((self._table.read_tokens(index, places[None])[0] != new) & known).any()
        end = (first + len(tokens)).clamp(max=self._length)
        is_usable = agrees & (first <= num_tokens) & (end > num_tokens)
        self.ends[plane].index_copy_(0, index, torch.where(is_usable, end, 0))
        self.starts[plane].index_copy_(0, index, start)

    def _add_planes(self) -> None:
        self.token_ids, self.starts, self.ends = (
            torch.cat([plane, plane.new_zeros((MOST_ALTERNATIVES, *plane.shape[1:]))])
            for plane in (self.token_ids, self.starts, self.ends)
        )

    def _index(self, slots: list[int]) -> torch.Tensor:
        return send(torch.tensor(slots, dtype=torch.int64), self._table.device)
