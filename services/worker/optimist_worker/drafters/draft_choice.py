"""Which tokens a drafter drafts behind a node, given its own scores there."""

from typing import NamedTuple

import torch
from torch import Tensor

from optimist_worker.core.acceptance.acceptance_rule import AcceptanceRule
from optimist_worker.core.acceptance.noise import Stream, gumbel
from optimist_worker.core.acceptance.sampling_table import SamplingColumns


class DraftChoice(NamedTuple):
    """The children of n nodes, in the order in which they are to be verified."""

    token_ids: Tensor
    """Int64 `[n, num_children]`, all different for a node."""
    log_probabilities: Tensor
    """How likely the drafter finds each, given its parent; `[n, num_children]`."""
    probabilities: Tensor | None
    """What each was drawn from, float32 `[n, num_children, vocab_size]`; None: not by chance."""


def choose_drafts(
    scores: Tensor,
    columns: SamplingColumns,
    positions: Tensor,
    num_children: int,
    rule: AcceptanceRule | None,
) -> DraftChoice:
    """Chooses the tokens that the rule is likely to accept behind some nodes.

    The coupled rule adds the target's own noise, so that both choose the same token as often as
    their distributions allow. Under rejection they are drawn without replacement by the Gumbel
    top-k trick (Kool, van Hoof and Welling, "Stochastic beams and where to find them", 2019).
    Otherwise they are the most likely ones, which any rule may be given as certain drafts.

    Args:
        scores: The drafter's, processed, `[n, vocab_size]`.
        columns: The sampling parameters of each node's request.
        positions: Positions of the tokens to be drafted, int64 `[n]`.
        num_children: Tokens per node, at most the vocabulary.
        rule: By which they will be judged; None leaves out all chance, which is needed under
            rejection where it depends on the drafts themselves which of them are verified.
    """
    vocab_size = scores.shape[-1]
    keys = scores
    if rule in (AcceptanceRule.COUPLED, AcceptanceRule.REJECTION):
        stream = Stream.TARGET if rule is AcceptanceRule.COUPLED else Stream.DRAFT
        noise = gumbel(columns.seed, positions, vocab_size, stream)
        keys = scores + noise * columns.samples[:, None]
    token_ids = keys.topk(num_children, dim=-1).indices
    log_probabilities = scores.gather(1, token_ids) - scores.logsumexp(-1, keepdim=True)
    probabilities = None
    if rule is AcceptanceRule.REJECTION:
        probabilities = _without_replacement(scores, token_ids)
    return DraftChoice(token_ids, log_probabilities, probabilities)


def _without_replacement(scores: Tensor, token_ids: Tensor) -> Tensor:
    """Returns what each token was drawn from: all but the tokens before it.

    Where these were all there is, the token is as good as certain.
    """
    number, num_children = token_ids.shape
    shape = (number, num_children, scores.shape[-1])
    drawn = torch.empty(shape, dtype=torch.float32, device=scores.device)
    left = scores.clone()
    for rank in range(num_children):
        token = token_ids[:, rank : rank + 1]
        is_empty = left.amax(-1, keepdim=True) == -torch.inf
        certain = torch.zeros_like(left).scatter_(1, token, 1.0)
        drawn[:, rank] = torch.where(is_empty, certain, left.softmax(-1))
        left.scatter_(1, token, -torch.inf)
    return drawn
