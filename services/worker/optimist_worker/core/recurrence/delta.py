"""The gated delta rule over a pass (Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024)."""

from typing import NamedTuple

import torch
from torch import Tensor

from optimist_worker.core.recurrence.rows import RecurrentPass, Updates, move
from optimist_worker.core.recurrence.walk import Walk


class DeltaTokens(NamedTuple):
    """What a layer computes of some tokens before its states are asked, in the states' dtype."""

    queries: Tensor
    """`[num_tokens, key_heads, key_dim]`."""
    keys: Tensor
    """The same; several heads in a row may share one of them."""
    values: Tensor
    """`[num_tokens, heads, value_dim]`."""
    decays: Tensor
    """The share of its state that a token keeps, `[num_tokens, heads]`."""
    rates: Tensor
    """The share of what its key recalls that a token replaces by its value, the same."""

    def select(self, tokens: Tensor) -> "DeltaTokens":
        """Returns some tokens."""
        return DeltaTokens(*(each[tokens] for each in self))


def run_delta_rule(rows: RecurrentPass, layer: int, tokens: DeltaTokens) -> Tensor:
    """Computes what queries recall after their own tokens, `[num_tokens, heads, value_dim]`.

    Each token goes on from the state of the one before it on its path, by the same operations
    whatever else is in the pass. Moves the layer's states over known tokens, and keeps what moves
    them over drafts.
    """
    output = torch.zeros_like(tokens.values)
    matrices = rows.pool.matrices(layer)
    states = matrices[rows.known.slots]
    output[rows.known.tokens], _ = _scan(states, tokens.select(rows.known.tokens), rows.known)
    matrices[rows.known.slots] = states
    if rows.has_drafts:
        walk = rows.drafts
        drafts = tokens.select(walk.tokens)
        output[walk.tokens], added = _scan(matrices[walk.slots], drafts, walk)
        rows.updates[layer] = Updates(drafts.keys, added, drafts.decays)
    return output


def _scan(states: Tensor, tokens: DeltaTokens, walk: Walk) -> tuple[Tensor, Tensor]:
    """Moves states over the tokens of a walk, in its order; returns what the queries recall and
    what was added, `[num_tokens, heads, value_dim]` each.

    If no level branches, the states are changed in place; otherwise they are of no use afterwards.
    """
    recalled, added = torch.empty_like(tokens.values), torch.empty_like(tokens.values)
    shared = tokens.values.shape[1] // tokens.keys.shape[1]
    queries, keys = (each.repeat_interleave(shared, 1) for each in tokens[:2])
    for span, sources in walk.levels:
        if sources is not None:
            states = states[sources]
        own = states[: span.stop - span.start]
        key, decay = keys[span], tokens.decays[span]
        known = (key[:, :, None] @ own)[:, :, 0] * decay[..., None]
        added[span] = (tokens.values[span] - known) * tokens.rates[span][..., None]
        move(own, key, added[span], decay)
        recalled[span] = (queries[span][:, :, None] @ own)[:, :, 0]
    return recalled, added
