"""Drafts of several drafters as those of one step."""

from dataclasses import replace

import torch

from optimist_worker.core.drafts import Drafts
from optimist_worker.core.tree import chain_parents
from optimist_worker.drafters.drafter import Proposal


def spread(proposal: Proposal, rows: torch.Tensor, num_rows: int) -> Proposal:
    """Puts the drafts of some rows among those of all; the others have none.

    Args:
        proposal: Of some rows.
        rows: Which these are, int64.
        num_rows: How many there are.
    """
    drafts = proposal.drafts

    def place(values: torch.Tensor, empty: int = 0) -> torch.Tensor:
        shape = (num_rows, *values.shape[1:])
        return values.new_full(shape, empty).index_copy_(0, rows, values)

    placed = replace(
        drafts,
        token_ids=place(drafts.token_ids),
        num_tokens=place(drafts.num_tokens),
        sources=place(drafts.sources),
        parents=None if drafts.parents is None else place(drafts.parents, -1),
        probabilities=None if drafts.probabilities is None else place(drafts.probabilities),
    )
    return Proposal(placed, None if proposal.fed is None else place(proposal.fed, -1))


def merge(windows: Drafts, proposal: Proposal) -> Proposal:
    """Takes each row's drafts from its window, or if that has none from the drafter."""
    drafted = proposal.drafts
    width = max(windows.width, drafted.width)
    from_window = windows.num_tokens > 0
    parents = None
    if windows.parents is not None or drafted.parents is not None:
        parents = torch.where(
            from_window[:, None],
            _widen(_parents(windows), width, -1),
            _widen(_parents(drafted), width, -1),
        )
    probabilities = drafted.probabilities
    if probabilities is not None:
        missing = width - drafted.width
        probabilities = torch.nn.functional.pad(probabilities, (0, 0, 0, missing))
    return Proposal(
        Drafts(
            token_ids=torch.where(
                from_window[:, None],
                _widen(windows.token_ids, width),
                _widen(drafted.token_ids, width),
            ),
            num_tokens=torch.where(from_window, windows.num_tokens, drafted.num_tokens),
            sources=torch.where(from_window, windows.sources, drafted.sources),
            parents=parents,
            max_siblings=max(windows.max_siblings, drafted.max_siblings),
            probabilities=probabilities,
            is_certain=None if probabilities is None else from_window,
        ),
        None if proposal.fed is None else _widen(proposal.fed, width, -1),
    )


def trim(proposal: Proposal, width: int) -> Proposal:
    """Leaves out what is after the widest row."""
    fed = proposal.fed
    return Proposal(proposal.drafts.trim(width), None if fed is None else fed[:, :width])


def _parents(drafts: Drafts) -> torch.Tensor:
    if drafts.parents is not None:
        return drafts.parents
    return chain_parents(drafts.num_rows, drafts.width, drafts.token_ids.device)


def _widen(values: torch.Tensor, width: int, empty: int = 0) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=empty)
