"""Takes hidden states out of a model while it runs."""

from typing import Any

import torch


class FeatureTap:
    """Keeps the features of the last pass for the draft heads.

    They are the hidden states after the final norm, or the outputs of some decoder layers one
    after the other (EAGLE-3).
    """

    def __init__(self, module: Any, layers: tuple[int, ...] | None) -> None:
        """Hooks into a model.

        Args:
            module: A causal language model of transformers.
            layers: Decoder layers whose outputs are wanted; None: the last hidden state.
        """
        self._parts: list[torch.Tensor] = []
        base = module.base_model
        # A pass that has failed leaves its features behind.
        base.register_forward_pre_hook(self._forget)
        if layers is None:
            base.register_forward_hook(self._note)
            return
        for number in layers:
            base.layers[number].register_forward_hook(self._note)

    def take(self) -> torch.Tensor:
        """Returns the features of the last pass and forgets them.

        Returns:
            `[num_tokens, dim]`, padding included.
        """
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _forget(self, module: Any, inputs: Any) -> None:
        self._parts = []

    def _note(self, module: Any, inputs: Any, output: Any) -> None:
        hidden = output if isinstance(output, torch.Tensor) else output[0]
        self._parts.append(hidden[0])
