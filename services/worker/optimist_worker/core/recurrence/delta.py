"""Gated delta rules over a pass."""

import torch
from torch import Tensor

from optimist_worker.core.recurrence.rows import RecurrentPass
from optimist_worker.core.recurrence.scan import SCAN, DeltaTokens, Updates


def run_delta_rule(rows: RecurrentPass, layer: int, tokens: DeltaTokens) -> Tensor:
    """Computes what queries recall after their own tokens, `[num_tokens, heads, value_dim]`.

    Moves the layer's states over known tokens, and keeps what moves them over drafts.
    """
    output = torch.zeros_like(tokens.values)
    matrices = rows.pool.matrices(layer)
    known, walk = rows.known, rows.drafts
    output[known.tokens], _ = SCAN(matrices, tokens.select(known.tokens), known, moves=True)
    if rows.has_drafts:
        drafts = tokens.select(walk.tokens)
        output[walk.tokens], added = SCAN(matrices, drafts, walk, moves=False)
        rows.updates[layer] = Updates(drafts.keys, added, drafts.decays)
    return output
