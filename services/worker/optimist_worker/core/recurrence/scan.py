"""The gated delta rule (Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024) over a walk.

Each token goes on from the state of the one before it on its path, by the same operations whatever
else is in the pass; a replay moves states by those that a scan moves them by.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from optimist_worker.core.operation import Operation
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


class Updates(NamedTuple):
    """What moves matrices over tokens in the order of their walk; a replay has several layers."""

    keys: Tensor
    """`[..., num_tokens, key_heads, key_dim]`."""
    values: Tensor
    """What is added along the keys, `[..., num_tokens, heads, value_dim]`."""
    decays: Tensor
    """Factors of what was there, `[..., num_tokens, heads]`."""


def scan(
    matrices: Tensor, tokens: DeltaTokens, walk: Walk, *, moves: bool
) -> tuple[Tensor, Tensor]:
    """Takes the matrices of the walk's slots over its tokens, given in its order.

    Args:
        matrices: Of all slots, `[num_slots, heads, key_dim, value_dim]`.
        tokens: The walk's.
        walk: In trees only if nothing moves.
        moves: Whether the matrices stay where the walk ends; else they are as before.

    Returns what the queries recall after their own tokens, and what these have added, both
    `[num_tokens, heads, value_dim]`.
    """
    states = matrices[walk.slots]
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
    if moves:
        matrices[walk.slots] = states
    return recalled, added


def replay(matrices: Tensor, updates: Updates, walk: Walk) -> None:
    """Moves matrices of several layers, `[num_layers, num_slots, heads, key_dim, value_dim]`, over
    the tokens of a walk of paths."""
    states = matrices[:, walk.slots]
    keys = updates.keys.repeat_interleave(matrices.shape[2] // updates.keys.shape[2], 2)
    for span, _ in walk.levels:
        own = states[:, : span.stop - span.start]
        move(own, keys[:, span], updates.values[:, span], updates.decays[:, span])
    matrices[:, walk.slots] = states


def move(states: Tensor, keys: Tensor, values: Tensor, decays: Tensor) -> None:
    """Moves matrices `[..., key_dim, value_dim]` over a token each: first they decay, then a value
    `[..., value_dim]` is added along a key `[..., key_dim]`."""
    states.mul_(decays[..., None, None])
    states.addcmul_(keys[..., :, None], values[..., None, :])


_LAUNCH = "optimist_worker.cpu_kernels.launch"
SCAN = Operation("delta rule", scan, None, f"{_LAUNCH}:scan")
REPLAY = Operation("replay", replay, None, f"{_LAUNCH}:replay")
