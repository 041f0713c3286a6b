"""Short causal convolutions of a pass, each channel by itself."""

import torch
from torch import Tensor

from optimist_worker.core.recurrence.rows import RecurrentPass


def convolve(
    rows: RecurrentPass, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Convolves the inputs of a pass, `[num_tokens, num_channels]`, after those of earlier ones.

    The weight is `[num_channels, width]`, the bias `[num_channels]`. Products are added in float32
    or wider, for each token in the same order, whatever else is in the pass. Moves the layer's
    state over known tokens, and keeps the inputs of drafts.
    """
    wide = torch.promote_types(inputs.dtype, torch.float32)
    taps = rows.taps(weight.shape[1])
    state = rows.pool.inputs(layer)
    every = torch.cat([state[rows.slots].flatten(0, 1), inputs])
    output = inputs.new_zeros(inputs.shape, dtype=wide)
    if bias is not None:
        output += bias
    for column, factors in enumerate(weight.to(wide).unbind(1)):
        output.addcmul_(every[taps[:, column]].to(wide), factors)
    ran, last = rows.last_known
    state[rows.slots[ran]] = every[taps[last, 1:]]
    if rows.has_drafts:
        rows.inputs[layer] = inputs[rows.drafts.tokens]
    return output.to(inputs.dtype)
