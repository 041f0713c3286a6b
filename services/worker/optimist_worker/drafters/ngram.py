"""Drafts from a request's predictions and its own text.

Prompt lookup (Saxena, "Prompt lookup decoding", 2023; Yang et al., "Inference with reference",
arXiv 2304.04487) with a cursor: an answer that copies mostly goes on where it has copied last, so
of several positions that look alike the one next to the cursor is taken, and where none does a
token that differed is taken for the source's, and the copy to go on after it.
"""

from dataclasses import dataclass

import torch

from optimist_common.drafts import DraftSource
from optimist_common.lookup import LONGEST_MATCH, MATCH_AT_START, REACH, Doubts
from optimist_worker.core.batch.slot_table import SlotTable, send
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.plan import Admission
from optimist_worker.drafters.drafter import DraftRows, Proposal, VerifiedStep

MOST_PREDICTED = 32_768
"""Tokens of a request's predictions that are kept; what comes after is not looked up."""
_NO_TOKEN = -1


@dataclass(slots=True)
class Sources:
    """Where rows' texts probably go on, int64 `[num_rows]` each."""

    indices: torch.Tensor
    """Of the tokens that come next; -1 for none."""
    num_matched: torch.Tensor
    """How many tokens before them are the rows' last ones."""


def count_matches(texts: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Counts for each index how many tokens before it are the last ones, int8 `[num_rows, n]`.

    The texts begin `LONGEST_MATCH` tokens before the first index, int32 with -1 where there is no
    token; `last` is what `find_last` returns.
    """
    width = texts.shape[1] - LONGEST_MATCH
    is_equal = torch.ones_like(texts[:, :width], dtype=torch.bool)
    num_matched = torch.zeros_like(is_equal, dtype=torch.int8)
    for back in range(1, LONGEST_MATCH + 1):
        start = LONGEST_MATCH - back
        is_equal = is_equal & (texts[:, start : start + width] == last[:, back - 1, None])
        num_matched += is_equal
    return num_matched


def find_last(token_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Returns the last tokens of each row, the last one first, `[num_rows, LONGEST_MATCH]`."""
    indices = lengths[:, None] - torch.arange(1, LONGEST_MATCH + 1, device=lengths.device)
    last = token_ids.gather(1, indices.clamp(min=0))
    # Equal to no token, and to no gap before the first one.
    return torch.where(indices >= 0, last, _NO_TOKEN - 1)


def choose_sources(
    num_matched: torch.Tensor, indices: torch.Tensor, lengths: torch.Tensor, cursors: torch.Tensor
) -> Sources:
    """Takes the longest match of each row, of equal ones that next to its cursor, else the cursor.

    `num_matched` is of each index `[num_rows, n]`; indices outside the texts, of some lengths, do
    not count. A cursor is where its row would go on copying; with -1 the first match is taken.
    """
    distances = (indices - cursors.clamp(min=0)[:, None]).abs()
    is_match = (num_matched > 0) & (indices < lengths[:, None])
    scores = torch.where(is_match, (num_matched.long() << 32) - distances, -1)
    best, column = scores.max(1, keepdim=True)
    best, is_found = best[:, 0], best[:, 0] >= 0
    found = indices.expand_as(scores).gather(1, column)[:, 0]
    return Sources(
        torch.where(is_found, found, torch.where(cursors < lengths, cursors, -1)),
        torch.where(is_found, num_matched.gather(1, column)[:, 0].long(), 0),
    )


class Predictions:
    """The predictions of each slot, and where in them its output would go on."""

    def __init__(self, table: SlotTable) -> None:
        """Begins without any."""
        num_rows, device = table.num_slots + 1, table.device
        width = min(table.token_ids.shape[1], MOST_PREDICTED)
        self.token_ids = torch.zeros((num_rows, width), dtype=torch.int32, device=device)
        self.lengths = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.cursors = torch.zeros(num_rows, dtype=torch.int64, device=device)

    def admit(self, admission: Admission) -> None:
        """Takes the predictions of a request, of which its output so far is taken to be a copy."""
        kept = admission.predicted_token_ids[: self.token_ids.shape[1]]
        if len(kept):
            tokens = send(torch.tensor(kept, dtype=torch.int32), self.token_ids.device)
            self.token_ids[admission.slot, : len(kept)] = tokens
        self.lengths[admission.slot] = len(kept)
        self.cursors[admission.slot] = len(admission.token_ids) - admission.num_prompt_tokens

    def read(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what lies around the cursors, see `count_matches`, and the indices there."""
        offsets = torch.arange(-LONGEST_MATCH - REACH, REACH, device=slots.device)
        indices = self.cursors[slots][:, None] + offsets
        within = indices.clamp(0, self.token_ids.shape[1] - 1)
        texts = torch.where(indices >= 0, self.token_ids[slots[:, None], within], _NO_TOKEN)
        return texts, indices[:, LONGEST_MATCH:]


class NgramDrafter:
    """Copies on from where the last tokens occur in predictions or before; a chain per row."""

    source = DraftSource.NGRAM

    def __init__(self, table: SlotTable, max_tokens: int) -> None:
        """Sets up a drafter of up to `max_tokens` drafts per row."""
        self.max_tokens = self.max_depth = max_tokens
        self._table = table
        self._cursors = torch.full((table.num_slots + 1,), -1, device=table.device)
        self._predictions = Predictions(table)
        # Where sizes are not read, a pass takes the time of all drafts that were planned.
        self._doubts = Doubts(table.num_slots + 1) if table.reads_sizes else None

    def admit(self, admission: Admission) -> None:
        """Takes a request's predictions; forgets where the slot's output was copied from."""
        self._cursors[admission.slot] = -1
        self._predictions.admit(admission)
        if self._doubts is not None:
            self._doubts.admit(admission.slot)

    def propose(self, rows: DraftRows) -> Proposal:
        """Drafts what follows the longest match; nothing where no index is like the row's end."""
        length, predictions = rows.columns.num_tokens, self._predictions
        width = min(rows.max_length, self._table.token_ids.shape[1])
        if self._table.reads_sizes:
            width = int(length.max())
        token_ids = self._table.token_ids[rows.slots, :width]
        own, predicted = self._find_sources(rows, token_ids)
        is_predicted = (predicted.indices >= 0) & (predicted.num_matched >= own.num_matched)
        found = torch.where(is_predicted, predicted.indices, own.indices)
        num_matched = torch.where(is_predicted, predicted.num_matched, own.num_matched)
        # Rows that may not draft are among them only where sizes are not read.
        may_draft = rows.limits > 0
        moved = torch.where(may_draft & ~is_predicted, found, self._cursors[rows.slots])
        self._cursors.index_copy_(0, rows.slots, moved)
        moved = torch.where(may_draft & is_predicted, found, predictions.cursors[rows.slots])
        predictions.cursors.index_copy_(0, rows.slots, moved)
        end = torch.where(is_predicted, predictions.lengths[rows.slots], length)
        number = torch.minimum((end - found).clamp(max=self.max_tokens), rows.limits)
        if self._doubts is not None:
            slots, matched = rows.slots.numpy(), num_matched.numpy()
            likely = self._doubts.count_likely(slots, matched, rows.least_chance)
            number = torch.minimum(number, torch.from_numpy(likely))
        number = torch.where(found >= 0, number, 0)
        indices = found[:, None] + torch.arange(rows.width, device=found.device)
        within = indices.clamp(0, predictions.token_ids.shape[1] - 1)
        drafts = Drafts(
            token_ids=torch.where(
                is_predicted[:, None],
                predictions.token_ids[rows.slots[:, None], within],
                token_ids.gather(1, indices.clamp(0, width - 1)),
            ).long(),
            num_tokens=number,
            sources=torch.where(number > 0, int(self.source), 0),
            positions=torch.where(is_predicted & (number > 0), found, -1),
        )
        return Proposal(drafts)

    def _find_sources(self, rows: DraftRows, token_ids: torch.Tensor) -> tuple[Sources, Sources]:
        """Returns where the rows' own texts go on, and where their predictions do.

        Prompts and verified outputs are `[num_rows, width]`; what lies after a row means nothing.
        """
        length, predictions = rows.columns.num_tokens, self._predictions
        width, lengths = token_ids.shape[1], predictions.lengths[rows.slots]
        before = torch.nn.functional.pad(token_ids, (LONGEST_MATCH, 0), value=_NO_TOKEN)
        around, ahead = predictions.read(rows.slots)
        texts = torch.cat([before, around], 1)
        num_matched = count_matches(texts, find_last(token_ids, length))
        indices = torch.arange(width, device=length.device)
        own = choose_sources(num_matched[:, :width], indices, length, self._cursors[rows.slots])
        matched = num_matched[:, width + LONGEST_MATCH :]
        cursors = predictions.cursors[rows.slots]
        predicted = choose_sources(matched, ahead, lengths, cursors)
        # An output begins as its prediction does, perhaps.
        begins = (length == rows.columns.num_prompt_tokens) & (lengths > 0)
        predicted.indices = torch.where(begins, 0, predicted.indices)
        predicted.num_matched = torch.where(begins, MATCH_AT_START, predicted.num_matched)
        return own, predicted

    def observe(self, step: VerifiedStep) -> None:
        """Moves along the sources as far as the row has come.

        A token that differed from its draft is taken to stand for one of the source's.
        """
        slots = step.rows.slots
        cursors = self._cursors[slots]
        moved = torch.where(cursors >= 0, cursors + step.num_emitted, -1)
        self._cursors.index_copy_(0, slots, moved)
        moved = self._predictions.cursors[slots] + step.num_emitted
        self._predictions.cursors.index_copy_(0, slots, moved)
        if self._doubts is not None:
            drafts, accepted = step.proposal.drafts, step.verdict.num_accepted
            is_judged = (drafts.sources == int(self.source)) & (step.num_emitted > 0)
            if len(rows := is_judged.nonzero()[:, 0]):
                judged = slots[rows], drafts.num_tokens[rows], accepted[rows]
                self._doubts.observe(*(column.numpy() for column in judged))
