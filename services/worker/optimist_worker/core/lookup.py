"""Where rows go on copying: in their own texts, or in their predictions.

Prompt lookup (Saxena, "Prompt lookup decoding", 2023; Yang et al., "Inference with reference",
arXiv 2304.04487) with a cursor: an answer that copies mostly goes on where it has copied last, so
of several positions that look alike the one next to the cursor is taken, and where none does a
token that differed is taken for the source's, and the copy to go on after it.
"""

from typing import NamedTuple

import torch

from optimist_common.lookup import LONGEST_MATCH, MATCH_AT_START, REACH
from optimist_worker.core.batch.slot_table import SlotColumns, SlotTable
from optimist_worker.core.operation import Operation
from optimist_worker.core.plan import Admission

MOST_PREDICTED = 32_768
"""Tokens of a request's predictions that are kept; what comes after is not looked up."""
_NO_TOKEN = -1
NO_CURSOR = -(2**40)
"""Of a row that has copied nothing yet."""


class Looking(NamedTuple):
    """Rows for which something is looked up."""

    slots: torch.Tensor
    """`[num_rows]`"""
    columns: SlotColumns
    """Of these slots, verified."""
    limits: torch.Tensor
    """Most drafts per row, `[num_rows]`; with 0 its cursors stay where they are."""
    width: int
    """Most drafts of any row."""
    max_length: int
    """At least as long as any row is, in tokens."""


class Sources(NamedTuple):
    """Where rows' texts probably go on, int64 `[num_rows]` each."""

    indices: torch.Tensor
    """Of the tokens that come next; -1 for none."""
    num_matched: torch.Tensor
    """How many tokens before them are the rows' last ones."""


class Found(NamedTuple):
    """What is looked up for rows: the better of their own texts and their predictions."""

    num_matched: torch.Tensor
    """As in `Sources`."""
    num_tokens: torch.Tensor
    """Tokens of the text from there on, at most the rows' limits, 0 where nothing is found, int64
    `[num_rows]`."""
    positions: torch.Tensor
    """Where in the predictions they begin, -1 if they are of the text itself, int64
    `[num_rows]`."""
    token_ids: torch.Tensor
    """These tokens, int64 `[num_rows, width]`."""


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
        num_rows, device, self._writes = table.num_slots + 1, table.device, table.writes
        width = min(table.token_ids.shape[1], MOST_PREDICTED)
        self.token_ids = torch.zeros((num_rows, width), dtype=torch.int32, device=device)
        self.lengths = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.cursors = torch.zeros(num_rows, dtype=torch.int64, device=device)
        """See `look_up`."""

    def admit(self, admission: Admission) -> None:
        """Takes the predictions of a request, of which its output so far is taken to be a copy."""
        kept, slot = admission.predicted_token_ids[: self.token_ids.shape[1]], admission.slot
        if len(kept):
            self._writes.put(self.token_ids[slot, : len(kept)], kept)
        self._writes.put(self.lengths[slot : slot + 1], [len(kept)])
        self._writes.put(self.cursors[slot : slot + 1], [-admission.num_prompt_tokens])

    def read(self, slots: torch.Tensor, cursors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what lies around some indices, see `count_matches`, and the indices there."""
        offsets = torch.arange(-LONGEST_MATCH - REACH, REACH, device=slots.device)
        indices = cursors[:, None] + offsets
        within = indices.clamp(0, self.token_ids.shape[1] - 1)
        texts = torch.where(indices >= 0, self.token_ids[slots[:, None], within], _NO_TOKEN)
        return texts, indices[:, LONGEST_MATCH:]


def look_up(
    token_ids: torch.Tensor, rows: Looking, cursors: torch.Tensor, predictions: Predictions
) -> Found:
    """Finds where rows go on, and moves the cursors of those that may draft there.

    `token_ids` are those of all slots, of which what lies after a row means nothing; `cursors` say
    where in it the rows' texts go on, `[num_slots + 1]`. They count from the end of the texts: so a
    copy goes on as the text does, and a token that differed stands for one of the source's.
    """
    slots, length = rows.slots, rows.columns.num_tokens
    width = min(rows.max_length, token_ids.shape[1])
    if length.device.type == "cpu":
        width = int(length.max())
    texts = token_ids[slots, :width]
    own, predicted = _find_sources(texts, rows, cursors, predictions)
    is_predicted = (predicted.indices >= 0) & (predicted.num_matched >= own.num_matched)
    found = torch.where(is_predicted, predicted.indices, own.indices)
    # Rows that may not draft are among them only where sizes are not read.
    may_draft = rows.limits > 0
    for where, is_there in ((cursors, ~is_predicted), (predictions.cursors, is_predicted)):
        cursor = torch.where(found >= 0, found - length, NO_CURSOR)
        moved = torch.where(may_draft & is_there, cursor, where[slots])
        where.index_copy_(0, slots, moved)
    end = torch.where(is_predicted, predictions.lengths[slots], length)
    indices = found[:, None] + torch.arange(rows.width, device=found.device)
    within = indices.clamp(0, predictions.token_ids.shape[1] - 1)
    following = torch.where(
        is_predicted[:, None],
        predictions.token_ids[slots[:, None], within],
        texts.gather(1, indices.clamp(0, width - 1)),
    )
    return Found(
        torch.where(is_predicted, predicted.num_matched, own.num_matched),
        torch.minimum(torch.where(found >= 0, end - found, 0), rows.limits),
        torch.where(is_predicted, found, -1),
        following.long(),
    )


def _find_sources(
    texts: torch.Tensor, rows: Looking, cursors: torch.Tensor, predictions: Predictions
) -> tuple[Sources, Sources]:
    """Returns where the rows' own texts go on, and where their predictions do.

    Prompts and verified outputs are `[num_rows, width]`, cursors in them as in `look_up`.
    """
    length = rows.columns.num_tokens
    width, lengths = texts.shape[1], predictions.lengths[rows.slots]
    cursor, predicted_cursor = (
        (where[rows.slots] + length).clamp(min=-1) for where in (cursors, predictions.cursors)
    )
    before = torch.nn.functional.pad(texts, (LONGEST_MATCH, 0), value=_NO_TOKEN)
    around, ahead = predictions.read(rows.slots, predicted_cursor)
    num_matched = count_matches(torch.cat([before, around], 1), find_last(texts, length))
    indices = torch.arange(width, device=length.device)
    own = choose_sources(num_matched[:, :width], indices, length, cursor)
    matched = num_matched[:, width + LONGEST_MATCH :]
    predicted = choose_sources(matched, ahead, lengths, predicted_cursor)
    # An output begins as its prediction does, perhaps.
    begins = (length == rows.columns.num_prompt_tokens) & (lengths > 0)
    return own, Sources(
        torch.where(begins, 0, predicted.indices),
        torch.where(begins, MATCH_AT_START, predicted.num_matched),
    )


LOOK_UP = Operation(
    "lookup",
    look_up,
    "optimist_worker.core.lookup_kernel:look_up",
    "optimist_worker.cpu_kernels.launch:look_up",
)
