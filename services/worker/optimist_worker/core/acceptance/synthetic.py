"""Synthetic acceptance: drafts are accepted by chance alone, to measure what speculation costs.

The emitted text means nothing. Of each node's children only the first may be accepted.
"""

from torch import Tensor

from optimist_worker.core.acceptance.noise import Stream, uniform
from optimist_worker.core.acceptance.verdict import Verdict, reach_verdict
from optimist_worker.core.acceptance.verify_pass import VerifyPass
from optimist_worker.core.tree import sibling_ranks


def verify_synthetic(verify: VerifyPass, rate: float) -> Verdict:
    """Accepts each draft with the same probability if those before it are.

    Args:
        verify: The pass; of its logits only the largest matter, for the token behind.
        rate: The probability, in [0, 1].
    """
    logits, drafts = verify.logits, verify.drafts
    largest, choices = logits.max(-1)
    is_finite = ~verify.by_row(~largest.isfinite()).any(1)
    if verify.allowed is not None:
        choices = logits.masked_fill(~verify.allowed, -float("inf")).argmax(-1)
    is_accepted = _draw(verify, rate)
    is_accepted &= (drafts.token_ids >= 0) & (drafts.token_ids < logits.shape[-1])
    return reach_verdict(drafts, is_accepted, verify.by_row(choices), is_finite)


def _draw(verify: VerifyPass, rate: float) -> Tensor:
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
