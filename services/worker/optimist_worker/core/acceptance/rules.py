"""The rules by which drafts are accepted, see `AcceptanceRule`.

A rule says of the scores after each node of a verify pass which token is chosen there. A draft is
accepted if it is the token chosen after its parent. So the token after a node matters only if the
node is accepted itself; where the sizes may depend on the data, which is on the CPU, the others are
left out.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from optimist_worker.core.acceptance.choice import CHOOSE, PICK
from optimist_worker.core.acceptance.noise import Stream, gumbel, uniform
from optimist_worker.core.acceptance.processing import TokenCounts, adjust, count_tokens, cut
from optimist_worker.core.acceptance.verdict import REACH_VERDICT, Verdict, VerifyPass, find_sound
from optimist_worker.core.drafts import (
    Drafts,
    ancestor_matrix,
    chain_parents,
    holds_from_top,
    sibling_ranks,
)

_CACHED_SCORES = 2**17
"""Scores processed at once on the CPU at most, so that they stay in its cache."""
_SCORES_AT_ONCE = 2**25
"""Scores processed at once on other devices, where all are; bounds the memory for it."""


class Candidates(NamedTuple):
    """Nodes after which a token is chosen: n of the flat rows of a pass."""

    rows: Tensor
    """Int64 `[n]`."""
    elements: Tensor
    """0 for node -1, 1 + i for node i; int64 `[n]`."""
    positions: Tensor
    """Position of the token to be chosen, int64 `[n]`."""
    slots: Tensor
    """Int64 `[n]`."""


Rule = Callable[[VerifyPass, Candidates, Tensor], Tensor]
"""Chooses tokens, int64 `[n]`, for some nodes from their logits after bias and penalties,
`[n, vocab_size]`."""


def verify_drafts(verify: VerifyPass, rule: Rule) -> Verdict:
    """Chooses a token after every node that is reached, and follows the drafts that agree."""
    drafts, nodes = verify.drafts, verify.nodes
    logits, choices, largest, left = _find_choices(verify)
    if verify.needs.processes:
        sampler = _Sampler(verify, rule, logits)
        # Without drafts all nodes are reached.
        if drafts.width == 0 or not _may_read(logits):
            choices = sampler.choose_all()
        else:
            sampler.choose_reached(choices, find_sound(largest, left, nodes, drafts)[0])
    verdict: Verdict = REACH_VERDICT(choices, largest, left, nodes, drafts)
    return verdict


class _OpenChoices(NamedTuple):
    """What may be chosen after the nodes of a pass."""

    logits: Tensor
    """Those of tokens that may not be chosen are -inf, `[N, vocab_size]`."""
    choices: Tensor
    """The largest of them, int64 `[N]`."""
    largest: Tensor
    """The largest logits, `[N]`."""
    left: Tensor | None
    """The same of tokens that may be chosen; None if all may."""


def _find_choices(verify: VerifyPass) -> _OpenChoices:
    """Takes out what may not be chosen."""
    logits = verify.logits
    # NaN and infinity pass through a maximum, so one reduction finds them and the greedy tokens.
    largest, choices = PICK(logits)
    if verify.allowed is None and verify.late_tokens is None:
        return _OpenChoices(logits, choices, largest, None)
    left = logits
    if verify.allowed is not None:
        left = left.masked_fill(~verify.allowed, -torch.inf)
    if (late := verify.late_tokens) is not None:
        rows = verify.nodes.rows
        is_early = (verify.positions < late.min_length[rows])[:, None]
        token_ids = late.token_ids[rows]
        values = left.gather(1, token_ids).masked_fill(is_early, -torch.inf)
        left = left.scatter(1, token_ids, values)
    most, choices = PICK(left)
    # Of nothing no distribution can be made.
    left = torch.where(most[:, None] == -torch.inf, logits, left)
    return _OpenChoices(left, choices, largest, most)


class _Sampler:
    """Replaces greedy choices by those of a rule."""

    def __init__(self, verify: VerifyPass, rule: Rule, logits: Tensor) -> None:
        self.verify, self.rule, self.logits, drafts = verify, rule, logits, verify.drafts
        self.known: TokenCounts | None = None
        if verify.needs.penalizes:
            token_ids = verify.token_ids
            if _may_read(token_ids):
                token_ids = token_ids[:, : int(verify.num_tokens.max())]
            self.known = count_tokens(
                token_ids[verify.slots],
                verify.num_prompt_tokens,
                verify.num_tokens,
                logits.shape[-1],
            )
            self.is_ancestor = ancestor_matrix(_parents(drafts))

    def choose_all(self) -> Tensor:
        """Chooses after all nodes, int64 `[N]`; the host need not know anything but sizes."""
        number, vocab_size = self.logits.shape
        at_once = max(1, _SCORES_AT_ONCE // vocab_size)
        parts = [slice(first, first + at_once) for first in range(0, number or 1, at_once)]
        chosen = [self._choose(part, self.logits[part]) for part in parts]
        return chosen[0] if len(chosen) == 1 else torch.cat(chosen)

    def choose_reached(self, choices: Tensor, is_sound: Tensor) -> None:
        """Chooses after nodes that are reached and not simply greedy, in place.

        Whether a node is reached is known only when a token is chosen after its parent. First
        children are the likeliest, so as many of them as the cache holds are looked at beforehand.
        """
        verify, drafts, nodes = self.verify, self.verify.drafts, self.verify.nodes
        columns, above = verify.sampling.gather(verify.slots), _parents(drafts) + 1
        is_left = (~columns.takes_argmax & is_sound)[nodes.rows] & nodes.is_real
        # Of node -1 too, `[R, 1 + K]`.
        depths = torch.nn.functional.pad(drafts.depths, (1, 0))[nodes.rows, nodes.offsets]
        is_first = drafts.is_node
        if drafts.parents is not None:
            is_first = sibling_ranks(drafts.parents) == 0
        deepest = 1 + drafts.width
        levels = max(1, _CACHED_SCORES // self.logits.shape[-1] // drafts.num_rows)
        while True:
            agrees = drafts.token_ids == verify.by_row(choices).gather(1, above)
            may_agree = torch.where(verify.by_row(is_left).gather(1, above), is_first, agrees)
            reached = holds_from_top(may_agree, drafts.parents)
            reached = torch.nn.functional.pad(reached, (1, 0), value=True)
            ahead = torch.where(is_left & reached[nodes.rows, nodes.offsets], depths, deepest)
            top = torch.full_like(drafts.num_tokens, deepest)
            top = top.scatter_reduce_(0, nodes.rows, ahead, "amin")[nodes.rows]
            indices = (ahead < torch.minimum(top + levels, top.new_tensor(deepest))).nonzero()[:, 0]
            if not len(indices):
                return
            choices[indices] = self._choose(indices, self.logits.index_select(0, indices))
            is_left[indices] = False

    def _choose(self, indices: Tensor | slice, logits: Tensor) -> Tensor:
        """Chooses after the nodes at some indices of the flat rows, int64 `[n]`."""
        verify, nodes = self.verify, self.verify.nodes
        found = Candidates(
            rows=nodes.rows[indices],
            elements=nodes.offsets[indices],
            positions=verify.positions[indices],
            slots=verify.node_slots[indices],
        )
        counts = None
        if self.known is not None:
            is_before = self.is_ancestor[found.rows, found.elements]
            drafted = verify.drafts.token_ids[found.rows]
            counts = self.known.with_drafts(found.rows, drafted, is_before)
        scores = adjust(logits, found.slots, verify.sampling, verify.needs, counts)
        return self.rule(verify, found, scores)


def _parents(drafts: Drafts) -> Tensor:
    if drafts.parents is not None:
        return drafts.parents
    return chain_parents(drafts.num_rows, drafts.width, drafts.token_ids.device)


def _may_read(tensor: Tensor) -> bool:
    """Returns whether the host may look at data, because it need not wait for them."""
    return tensor.device.type == "cpu"


def verify_coupled(verify: VerifyPass) -> Verdict:
    """Coupled: a draft is accepted if it is the token that would be sampled anyway.

    The token at position p is argmax(scores + gumbel(seed, p)). By the Gumbel-max trick this
    samples from the processed distribution exactly, whatever was drafted (cf. Daliri et al.,
    "Coupling without communication and drafter-invariant speculative decoding", 2024).
    """
    return verify_drafts(verify, _choose_sampled)


def _choose_sampled(verify: VerifyPass, nodes: Candidates, scores: Tensor) -> Tensor:
    chosen: Tensor = CHOOSE(scores, nodes.positions, nodes.slots, verify.sampling, verify.needs)
    return chosen


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
    columns = verify.sampling.gather(nodes.slots)
    scores = cut(scores, columns, verify.needs)
    greedy = scores.argmax(-1)
    if not verify.needs.samples:
        return greedy
    left, chosen = scores.softmax(-1), torch.full_like(greedy, -1)
    if (probabilities := verify.drafts.probabilities) is not None:
        left, chosen = _choose_child(verify.drafts, probabilities, nodes, columns.seed, left)
    noise = gumbel(columns.seed, nodes.positions, scores.shape[-1], Stream.RESIDUAL)
    chosen = torch.where(chosen < 0, (left.log() + noise).argmax(-1), chosen)
    return torch.where(columns.samples, chosen, greedy)


def _choose_child(
    drafts: Drafts, probabilities: Tensor, nodes: Candidates, seeds: Tensor, left: Tensor
) -> tuple[Tensor, Tensor]:
    """Goes through the children, drawn by chance, of nodes after which a token is chosen.

    `probabilities` are those of all drafts, `[R, K, V]`, and `left` the target's, float64 `[n, V]`.
    Returns what is left of these, and the accepted child's token or -1, int64 `[n]`.
    """
    children, vocab_size = _children(drafts, nodes), left.shape[-1]
    if drafts.is_certain is not None:
        children = torch.where(drafts.is_certain[nodes.rows][:, None], -1, children)
    chances = uniform(seeds, nodes.positions, children.clamp(min=0), Stream.ACCEPTANCE)
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
    # What is no child goes to the last column, which is cut off.
    indices = torch.where(is_child, ranks[nodes.rows], most).clamp_(max=most)
    every = torch.arange(drafts.width, device=indices.device).expand_as(indices)
    children = indices.new_full((len(indices), most + 1), -1)
    return children.scatter_(1, indices, every)[:, :most]


def _residual(left: Tensor, drawn: Tensor) -> Tensor:
    """Returns norm(max(left - drawn, 0)); `left` where nothing but rounding would remain."""
    residual = (left - drawn).clamp_(min=0.0)
    total = residual.sum(-1, keepdim=True)
    return torch.where(total > 0.0, residual / total, left)
