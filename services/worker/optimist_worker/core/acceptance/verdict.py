"""What a pass made of its drafts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from optimist_worker.core.drafts import Drafts
from optimist_worker.core.tree import holds_from_top, nodes_by_depth


@dataclass(slots=True)
class Verdict:
    """The tokens of R rows: accepted drafts, and behind them one token of the target."""

    token_ids: Tensor
    """Int64 `[R, 1 + K]`; the first `num_accepted + 1` count, if the row emits and is finite."""
    num_accepted: Tensor
    """Int64 `[R]`; 0 where logits are not finite."""
    path: Tensor | None
    """Accepted nodes from the top down, int64 `[R, K]`, behind the last 0; None for chains."""
    is_finite: Tensor
    """Whether all of the row's logits are numbers, bool `[R]`; else it emits nothing."""


def reach_verdict(
    drafts: Drafts, is_accepted: Tensor, choices: Tensor, is_finite: Tensor
) -> Verdict:
    """Follows each row's accepted drafts as far as they go.

    Args:
        drafts: The drafts.
        is_accepted: Whether each node is accepted if its parent is, bool `[R, K]`; at most one of
            siblings.
        choices: The token behind each node if it is the last accepted one, int64 `[R, 1 + K]`,
            the first one for node -1.
        is_finite: Whether all of the row's logits are numbers, bool `[R]`.
    """
    if not drafts.width:
        return Verdict(choices, torch.zeros_like(drafts.num_tokens), None, is_finite)
    is_accepted = is_accepted & drafts.is_node & is_finite[:, None]
    accepted = holds_from_top(is_accepted, drafts.parents)
    num_accepted = accepted.sum(1)
    token_ids, path = drafts.token_ids, None
    last = num_accepted
    if drafts.parents is not None:
        path = nodes_by_depth(accepted, drafts.depths)
        token_ids = token_ids.gather(1, path)
        last_node = path.gather(1, (num_accepted - 1).clamp(min=0)[:, None])[:, 0]
        last = torch.where(num_accepted > 0, 1 + last_node, 0)
    token_ids = torch.nn.functional.pad(token_ids, (0, 1))
    places = torch.arange(1 + drafts.width, device=token_ids.device)
    token_ids = torch.where(places < num_accepted[:, None], token_ids, 0)
    bonus = choices.gather(1, last[:, None])
    return Verdict(
        token_ids.scatter_(1, num_accepted[:, None], bonus), num_accepted, path, is_finite
    )


def nothing(drafts: Drafts) -> Verdict:
    """Returns the verdict on a pass that did not take place."""
    zeros = torch.zeros_like(drafts.num_tokens)
    return Verdict(
        torch.nn.functional.pad(drafts.token_ids, (0, 1)),
        zeros,
        None,
        torch.ones_like(zeros).bool(),
    )
