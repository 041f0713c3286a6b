"""Coupled acceptance: a draft is accepted if it is the token that would be sampled anyway.

The token at position p is argmax(scores + gumbel(seed, p)). By the Gumbel-max trick this samples
from the processed distribution exactly, whatever was drafted (cf. Daliri et al., "Coupling without
communication and drafter-invariant speculative decoding", 2024).
"""

from torch import Tensor

from optimist_worker.core.acceptance.choice import Candidates, verify_drafts
from optimist_worker.core.acceptance.noise import gumbel
from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.acceptance.verify_pass import VerifyPass


def verify_coupled(verify: VerifyPass) -> Verdict:
    """Accepts the drafts that are the tokens that would be sampled."""
    return verify_drafts(verify, _choose)


def _choose(verify: VerifyPass, nodes: Candidates, scores: Tensor) -> Tensor:
    if verify.needs.samples:
        noise = gumbel(nodes.columns.seed, nodes.positions, scores.shape[-1])
        scores = scores + noise * nodes.columns.samples[:, None]
    return scores.argmax(-1)
