"""Rejection: a draft of probability q is accepted with probability p/q, else p loses what q had.

Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding" (2023) for
chains; for trees the recursion over siblings drawn without replacement of Jeon et al., "Recursive
speculative decoding" (2024), and Li et al., "EAGLE" (2024).

The rule says of every node by itself which token is emitted behind it: a child, if one is accepted,
else one drawn from what is left, which no rejected child has any part in. Children that were not
drawn by chance have q = 1: each is accepted with the target's probability of it, and what is left
is the target's distribution without them. So one token drawn from the target says all of that,
however many children there are.
"""

import torch
from torch import Tensor

from optimist_worker.core.acceptance.choice import Candidates, verify_drafts
from optimist_worker.core.acceptance.noise import Stream, gumbel, uniform
from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.acceptance.verify_pass import VerifyPass
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.tree import sibling_ranks


def verify_rejection(verify: VerifyPass) -> Verdict:
    """Accepts drafts by chance, such that the emitted tokens have the target's distribution."""
    return verify_drafts(verify, _choose)


def _choose(verify: VerifyPass, nodes: Candidates, scores: Tensor) -> Tensor:
    greedy = scores.argmax(-1)
    if not verify.needs.samples:
        return greedy
    left, chosen = scores.softmax(-1), torch.full_like(greedy, -1)
    if verify.drafts.probabilities is not None:
        left, chosen = _choose_child(verify.drafts, verify.drafts.probabilities, nodes, left)
    noise = gumbel(nodes.columns.seed, nodes.positions, scores.shape[-1], Stream.RESIDUAL)
    chosen = torch.where(chosen < 0, (left.log() + noise).argmax(-1), chosen)
    return torch.where(nodes.columns.samples, chosen, greedy)


def _choose_child(
    drafts: Drafts, probabilities: Tensor, nodes: Candidates, left: Tensor
) -> tuple[Tensor, Tensor]:
    """Goes through the children that were drawn by chance.

    Args:
        drafts: The drafts.
        probabilities: Theirs, `[R, K, V]`.
        nodes: Behind which a token is chosen.
        left: The target's distributions, float64 `[n, V]`.

    Returns:
        What is left of the distributions, and the accepted child's token or -1, int64 `[n]`.
    """
    children, vocab_size = _children(drafts, nodes), left.shape[-1]
    if drafts.is_certain is not None:
        children = torch.where(drafts.is_certain[nodes.rows][:, None], -1, children)
    chances = uniform(nodes.columns.seed, nodes.positions, children.clamp(min=0), Stream.ACCEPTANCE)
    chosen = torch.full_like(nodes.rows, -1)
    for rank in range(children.shape[1]):
        child = children[:, rank].clamp(min=0)
        token_ids = drafts.token_ids[nodes.rows, child]
        is_draft = (children[:, rank] >= 0) & (token_ids >= 0) & (token_ids < vocab_size)
        token_ids = token_ids.clamp(0, vocab_size - 1)[:, None]
        drawn = probabilities[nodes.rows, child].double()
        p, q = left.gather(1, token_ids)[:, 0], drawn.gather(1, token_ids)[:, 0]
        is_accepted = is_draft & (chosen < 0) & (chances[:, rank] * q < p)
        chosen = torch.where(is_accepted, token_ids[:, 0], chosen)
        left = torch.where(is_draft[:, None], _residual(left, drawn), left)
    return left, chosen


def _children(drafts: Drafts, nodes: Candidates) -> Tensor:
    """Lists the children of some nodes in their order, int64 `[n, max_siblings]`, -1 for none."""
    if not drafts.width:
        return nodes.rows.new_zeros((len(nodes.rows), 0))
    if drafts.parents is None:
        has_child = nodes.elements < drafts.num_tokens[nodes.rows]
        return torch.where(has_child, nodes.elements, -1)[:, None]
    most = drafts.max_siblings
    ranks = sibling_ranks(torch.where(drafts.is_node, drafts.parents, drafts.width))
    is_child = drafts.parents[nodes.rows] == (nodes.elements - 1)[:, None]
    is_child &= drafts.is_node[nodes.rows]
    # What is no child goes to the last place, which is cut off.
    places = torch.where(is_child, ranks[nodes.rows], most).clamp_(max=most)
    indices = torch.arange(drafts.width, device=places.device).expand_as(places)
    children = places.new_full((len(places), most + 1), -1)
    return children.scatter_(1, places, indices)[:, :most]


def _residual(left: Tensor, drawn: Tensor) -> Tensor:
    """Returns norm(max(left - drawn, 0)); `left` where nothing but rounding would remain."""
    residual = (left - drawn).clamp_(min=0.0)
    total = residual.sum(-1, keepdim=True)
    return torch.where(total > 0.0, residual / total, left)
