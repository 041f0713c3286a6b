"""Rejection: a draft of probability q is accepted with probability p/q, else p loses what q had.

Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding" (2023) for
chains; for trees the recursion over siblings drawn without replacement of Jeon et al., "Recursive
speculative decoding" (2024), and Li et al., "EAGLE" (2024). A draft that was not drawn by chance
has q = 1.

The rule says of every node by itself which token is emitted behind it: a child, if one is accepted,
else one drawn from what is left, which no rejected child has any part in.
"""

import torch
from torch import Tensor

from optimist_worker.core.choice import Candidates, verify_drafts
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.noise import Stream, gumbel, uniform
from optimist_worker.core.tree import sibling_ranks
from optimist_worker.core.verdict import Verdict
from optimist_worker.core.verify_pass import VerifyPass


def verify_rejection(verify: VerifyPass) -> Verdict:
    """Accepts drafts by chance, such that the emitted tokens have the target's distribution."""
    return verify_drafts(verify, _choose)


def _choose(verify: VerifyPass, nodes: Candidates, scores: Tensor) -> Tensor:
    greedy = scores.argmax(-1)
    if not verify.needs.samples:
        return greedy
    drafts, vocab_size = verify.drafts, scores.shape[-1]
    children = _children(drafts, nodes)
    seeds, positions = nodes.columns.seed, nodes.positions
    chances = uniform(seeds, positions, children.clamp(min=0), Stream.ACCEPTANCE)
    left = scores.softmax(-1)
    chosen = torch.full_like(greedy, -1)
    for rank in range(children.shape[1]):
        child = children[:, rank].clamp(min=0)
        token_ids = drafts.token_ids[nodes.rows, child]
        is_draft = (children[:, rank] >= 0) & (token_ids >= 0) & (token_ids < vocab_size)
        token_ids = token_ids.clamp(0, vocab_size - 1)[:, None]
        drawn = _draft_distribution(drafts, nodes.rows, child, token_ids, vocab_size)
        p, q = left.gather(1, token_ids)[:, 0], drawn.gather(1, token_ids)[:, 0]
        is_accepted = is_draft & (chosen < 0) & (chances[:, rank] * q < p)
        chosen = torch.where(is_accepted, token_ids[:, 0], chosen)
        left = torch.where(is_draft[:, None], _residual(left, drawn), left)
    noise = gumbel(seeds, positions, vocab_size, Stream.RESIDUAL)
    drawn_last = (left.log() + noise).argmax(-1)
    chosen = torch.where(chosen < 0, drawn_last, chosen)
    return torch.where(nodes.columns.samples, chosen, greedy)


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


def _draft_distribution(
    drafts: Drafts, rows: Tensor, child: Tensor, token_ids: Tensor, vocab_size: int
) -> Tensor:
    """Returns the distributions that some drafts were drawn from, float64 `[n, vocab_size]`."""
    certain = torch.zeros((len(rows), vocab_size), dtype=torch.float64, device=rows.device)
    certain.scatter_(1, token_ids, 1.0)
    if drafts.probabilities is None:
        return certain
    drawn = drafts.probabilities[rows, child].double()
    if drafts.is_certain is None:
        return drawn
    return torch.where(drafts.is_certain[rows][:, None], certain, drawn)


def _residual(left: Tensor, drawn: Tensor) -> Tensor:
    """Returns norm(max(left - drawn, 0)); `left` where nothing but rounding would remain."""
    residual = (left - drawn).clamp_(min=0.0)
    total = residual.sum(-1, keepdim=True)
    return torch.where(total > 0.0, residual / total, left)
