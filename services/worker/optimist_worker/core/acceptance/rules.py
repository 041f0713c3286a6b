"""The rules by which drafts are accepted, see `AcceptanceRule`."""

import torch
from torch import Tensor

from optimist_worker.core.acceptance.choice import Candidates, verify_drafts
from optimist_worker.core.acceptance.noise import Stream, gumbel, uniform
from optimist_worker.core.acceptance.verdict import Verdict, VerifyPass, reach_verdict
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.tree import sibling_ranks


def verify_coupled(verify: VerifyPass) -> Verdict:
    """Coupled: a draft is accepted if it is the token that would be sampled anyway.

    The token at position p is argmax(scores + gumbel(seed, p)). By the Gumbel-max trick this
    samples from the processed distribution exactly, whatever was drafted (cf. Daliri et al.,
    "Coupling without communication and drafter-invariant speculative decoding", 2024).
    """
    return verify_drafts(verify, _choose_sampled)


def _choose_sampled(verify: VerifyPass, nodes: Candidates, scores: Tensor) -> Tensor:
    if verify.needs.samples:
        noise = gumbel(nodes.columns.seed, nodes.positions, scores.shape[-1])
        scores = scores + noise * nodes.columns.samples[:, None]
    return scores.argmax(-1)


def verify_rejection(verify: VerifyPass) -> Verdict:
    """Rejection: a draft of probability q is accepted with p/q, else p loses what q had.

    Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding" (2023)
    for chains; for trees the recursion over siblings drawn without replacement of Jeon et al.,
    "Recursive speculative decoding" (2024), and Li et al., "EAGLE" (2024). The emitted tokens have
    the target's distribution.

    The rule says of every node by itself which token is emitted after it: a child, if one is
    accepted, else one drawn from what is left, which no rejected child has any part in. Children
    that were not drawn by chance have q = 1: each is accepted with the target's probability of it,
    and what is left is the target's distribution without them. So one token drawn from the target
    says all of that, however many children there are.
    """
    return verify_drafts(verify, _choose_by_chance)


def _choose_by_chance(verify: VerifyPass, nodes: Candidates, scores: Tensor) -> Tensor:
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
        nodes: After which a token is chosen.
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


def verify_synthetic(verify: VerifyPass, rate: float) -> Verdict:
    """Synthetic: each draft is accepted with the same probability if those before it are.

    It measures what speculation costs: the emitted text means nothing. Of each node's children only
    the first may be accepted.

    Args:
        verify: The pass; of its logits only the largest matter, for the token after.
        rate: The probability, in [0, 1].
    """
    logits, drafts = verify.logits, verify.drafts
    largest, choices = logits.max(-1)
    is_finite = ~verify.by_row(~largest.isfinite()).any(1)
    if verify.allowed is not None:
        choices = logits.masked_fill(~verify.allowed, -float("inf")).argmax(-1)
    is_accepted = _draw_accepted(verify, rate)
    is_accepted &= (drafts.token_ids >= 0) & (drafts.token_ids < logits.shape[-1])
    return reach_verdict(drafts, is_accepted, verify.by_row(choices), is_finite)


def _draw_accepted(verify: VerifyPass, rate: float) -> Tensor:
    """Draws which nodes are accepted, bool `[R, K]`."""
    drafts = verify.drafts
    positions = verify.num_tokens[:, None] + drafts.depths - 1
    seeds = verify.sampling.gather(verify.slots).seed
    flat_seeds = seeds[:, None].expand_as(positions).flatten()
    flat = positions.flatten()
    chances = uniform(flat_seeds, flat, flat.new_zeros((len(flat), 1)), Stream.ACCEPTANCE)
    is_lucky = chances.view(positions.shape) < rate
    if drafts.parents is None:
        return is_lucky
    return is_lucky & (sibling_ranks(drafts.parents) == 0)
