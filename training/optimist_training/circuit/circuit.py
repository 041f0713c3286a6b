"""Writes a pointer machine into the initial weights of a plain Llama model.

From random weights, exact copying of hundreds of tokens takes far more training than two CPU cores
can give. So the initial weights already know where each token of the answer comes from, layer by
layer:

0. Heads: prompt or answer; the four tokens before. Neurons: word starts and ends, word pieces.
1. Heads: count lines and backticks; the kind of edit, from the instruction's verb. Neurons: one
   code for each line or quoted span; which quoted span is old, which is new.
2. Heads: count words within the line; does the word that just ended equal the old one; which line
   does the instruction name; where does the body start. Neurons: an answer that lost or gained a
   line corrects its line number from there on.
3. Heads: is this answer's line already annotated; how far into the word. Neurons: codes of the
   numbers of line, word and piece.
4. Heads: copy what follows the token with the same line, word, piece and text in the code; look
   for old words there. Neurons: decide to start or to continue the new text.
5. Heads: copy from the new text; they outweigh the copy of the code.

The prompt's tokens carry the line and word number of the token before them and the answer's tokens
their own, so that a match points at the token to copy.
"""

import torch
from torch import Tensor

from optimist_training.circuit.answering import copy_layer, new_text_layer, places_layer
from optimist_training.circuit.basis import Basis
from optimist_training.circuit.reading import lines_layer, text_layer, words_layer
from optimist_training.circuit.weights import layer_weights

_LAYERS = (text_layer, lines_layer, words_layer, places_layer, copy_layer, new_text_layer)
NUM_LAYERS = len(_LAYERS)


def circuit_layers(basis: Basis, generator: torch.Generator) -> list[dict[str, Tensor]]:
    """Returns each layer's matrices; the generator fills what the circuit does not use."""
    return [layer_weights(*layer(basis), generator) for layer in _LAYERS]
