"""Trees of drafts from windows with alternatives."""

import torch

from optimist_worker.core.drafts import Drafts
from optimist_worker.core.flat_batch import MOST_TREE_NODES
from optimist_worker.core.plan import MOST_ALTERNATIVES
from optimist_worker.core.slot_table import SlotColumns, read
from optimist_worker.core.tree import chain_parents
from optimist_worker.core.window_table import (
    MOST_ALTERNATIVE_NODES,
    WindowTable,
)


def draft_windows(
    windows: WindowTable,
    slots: torch.Tensor,
    columns: SlotColumns,
    limits: torch.Tensor,
    width: int,
) -> Drafts:
    """Drafts from windows: a chain, and branches where alternatives depart from it.

    Alternatives get at most half of a row's drafts, likely ones first. A row without one is drafted
    as by `WindowTable.draft`.

    Args:
        windows: The windows of all slots.
        slots: `[num_rows]`.
        columns: Of these slots.
        limits: Most drafts, `[num_rows]`.
        width: Most drafts of any row, known to the host.
    """
    main = windows.draft(slots, columns, limits, width)
    if not windows.has_alternatives:
        return main
    length = columns.num_tokens
    starts, ends = windows.starts[1:, slots] - length, windows.ends[1:, slots] - length
    sizes = (ends - starts).clamp(0, MOST_ALTERNATIVE_NODES)
    sizes = torch.where(_is_new(windows, slots, length, starts, main), sizes, 0)
    budget = torch.minimum(limits, torch.full_like(limits, MOST_TREE_NODES)) // 2
    before = sizes.cumsum(0) - sizes
    sizes = torch.minimum(sizes, (budget - before).clamp(min=0))
    has_branch = sizes.sum(0) > 0
    most = torch.where(has_branch, limits.clamp(max=MOST_TREE_NODES) - sizes.sum(0), limits)
    num_main = torch.minimum(main.num_tokens, most)
    sizes = torch.where(starts <= num_main, sizes, 0)
    tokens, parents = [main.token_ids], [chain_parents(len(slots), width, slots.device)]
    exists = [parents[0] + 1 < num_main[:, None]]
    offsets = torch.arange(MOST_ALTERNATIVE_NODES, device=slots.device)
    for plane, (start, size) in enumerate(zip(starts, sizes, strict=True), 1):
        first = width + (plane - 1) * MOST_ALTERNATIVE_NODES
        tokens.append(read(windows.token_ids[plane], slots, (length + start)[:, None] + offsets))
        # Where a branch does not exist its parent has to be some node nevertheless.
        behind = (start - 1).clamp(max=width - 1)
        parents.append(torch.where(offsets > 0, first + offsets - 1, behind[:, None]))
        exists.append(offsets < size[:, None])
    return _compress(
        torch.cat(tokens, 1), torch.cat(parents, 1), torch.cat(exists, 1), main.sources, width
    )


def _is_new(
    windows: WindowTable,
    slots: torch.Tensor,
    length: torch.Tensor,
    starts: torch.Tensor,
    main: Drafts,
) -> torch.Tensor:
    """Returns which alternatives begin ahead, with another token than all before them there."""
    is_ahead = (starts >= 0) & (windows.ends[1:, slots] > windows.starts[1:, slots])
    is_ahead &= starts <= main.num_tokens
    places = (length + starts).T
    first = [read(windows.token_ids[plane], slots, places) for plane in range(len(windows.ends))]
    tokens = torch.stack([column[:, plane - 1] for plane, column in enumerate(first) if plane])
    is_ahead &= tokens != first[0].T
    for plane in range(1, len(tokens)):
        twins = (starts[:plane] == starts[plane]) & (tokens[:plane] == tokens[plane])
        is_ahead[plane] &= ~(twins & is_ahead[:plane]).any(0)
    return is_ahead


def _compress(
    token_ids: torch.Tensor,
    parents: torch.Tensor,
    exists: torch.Tensor,
    sources: torch.Tensor,
    width: int,
) -> Drafts:
    """Moves the nodes that exist to the front, in their order."""
    order = (~exists).int().argsort(dim=1, stable=True)[:, :width]
    places = exists.cumsum(1) - 1
    moved = torch.where(parents < 0, -1, places.gather(1, parents.clamp(min=0)))
    return Drafts(
        token_ids=token_ids.gather(1, order),
        num_tokens=exists.sum(1),
        sources=sources,
        parents=moved.gather(1, order),
        max_siblings=1 + MOST_ALTERNATIVES,
    )
