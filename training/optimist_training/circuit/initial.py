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

import math

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from optimist_training.circuit.answering import copy_layer, new_text_layer, positions_layer
from optimist_training.circuit.basis import Basis, spherical_code
from optimist_training.circuit.reading import lines_layer, text_layer, words_layer
from optimist_training.circuit.weights import (
    BLOCKS,
    HEAD_DIM,
    HIDDEN_SIZE,
    INTERMEDIATE_SIZE,
    NUM_HEADS,
    ROPE_THETA,
    Subspaces,
    layer_weights,
)
from optimist_training.data.tokenizer import ASSISTANT, USER, end_token

_LAYERS = (text_layer, lines_layer, words_layer, positions_layer, copy_layer, new_text_layer)
NUM_LAYERS = len(_LAYERS)
MAX_POSITIONS = 2048

# The constant feature outweighs all others together, so that normalisation hardly changes them;
# the norms' weights then bring every feature back to its own size, and the constant to 1.
_CONSTANT = 512.0
_FEATURES = 15.0
"""Typical sum of squares of all other features."""
_NORM = math.sqrt((_CONSTANT**2 + _FEATURES) / HIDDEN_SIZE)
_LOGIT_SCALE = 30.0

_VERBS = {
    "Rename": "rename",
    "Change": "constant",
    "Replace": "constant",
    "Delete": "delete",
    "Remove": "delete",
    "Insert": "insert",
    "Add": "docstring",
    "Give": "annotate",
    "Annotate": "annotate",
    "Repeat": "repeat",
    "Copy": "repeat",
}
"""The first word of the instruction decides the kind of edit."""


def initial_model(tokenizer: Tokenizer, seed: int) -> LlamaForCausalLM:
    """Builds the model whose weights are the circuit."""
    end = end_token(tokenizer)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=HIDDEN_SIZE,
        intermediate_size=INTERMEDIATE_SIZE,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict({name: value.float() for name, value in _weights(tokenizer, seed)})
    return model


def _weights(tokenizer: Tokenizer, seed: int) -> list[tuple[str, Tensor]]:
    spaces = Subspaces.build()
    vocabulary = [tokenizer.decode([token]) for token in range(tokenizer.get_vocab_size())]
    # One code more: the padding of short words.
    codes = {
        name: spherical_code(len(vocabulary) + 1, BLOCKS[name], seed + number)
        for number, name in enumerate(("code", "code_more", "piece"))
    }
    next_codes = torch.cat([code[:-1] for code in codes.values()], dim=1) / math.sqrt(3)
    special = {"colon": ": ", "backtick": "`", "newline": "\n"}
    token_codes = {name: next_codes[_only_token(tokenizer, text)] for name, text in special.items()}
    embedding = torch.stack([_features(spaces, text) for text in vocabulary])
    for token, name in ((USER, "user"), (ASSISTANT, "assistant")):
        embedding[tokenizer.token_to_id(token), spaces.slices[name]] = 1.0
    for name, code in codes.items():
        embedding[:, spaces.slices[name]] = code[:-1]
        embedding[tokenizer.token_to_id(USER), spaces.slices[name]] = 0.0
    output = torch.zeros_like(embedding)
    output[:, spaces.slices["next"]] = _LOGIT_SCALE * next_codes
    norm = torch.full((HIDDEN_SIZE,), _NORM, dtype=torch.float64)
    norm[spaces.slices["one"]] = _NORM / _CONSTANT
    weights = [
        ("model.embed_tokens.weight", embedding),
        ("model.norm.weight", norm),
        ("lm_head.weight", output),
    ]
    for verb in _VERBS:
        _only_token(tokenizer, verb)
    basis = Basis(spaces.slices, codes["piece"][-1], token_codes)
    layers = circuit_layers(basis, torch.Generator().manual_seed(seed))
    for number, layer in enumerate(layers):
        prefix = f"model.layers.{number}."
        weights += [(prefix + name, matrix) for name, matrix in layer.items()]
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights.append((f"{prefix}{name}.weight", norm))
    return weights


def _only_token(tokenizer: Tokenizer, text: str) -> int:
    tokens: list[int] = tokenizer.encode(text).ids
    if len(tokens) != 1:
        raise ValueError(f"the tokenizer cuts {text!r} into {len(tokens)} tokens; it must be one")
    return tokens[0]


def _features(spaces: Subspaces, text: str) -> Tensor:
    """Returns what the circuit needs to know of a token, [hidden_size]."""
    is_digit = len(text) == 1 and text.isdigit()
    features = {
        "one": _CONSTANT,
        "word": text.replace("_", "a").isalnum() and text.isascii(),
        "newline": text == "\n",
        "backtick": text == "`",
        "digit": is_digit,
        "digit_value": int(text) / 10 if is_digit else 0.0,
        "colon_end": text.endswith(":"),
        "colon_space": text == ": ",
    }
    if text in _VERBS:
        features[f"ask_{_VERBS[text]}"] = True
    return spaces.row(**{name: float(value) for name, value in features.items()})


def circuit_layers(basis: Basis, generator: torch.Generator) -> list[dict[str, Tensor]]:
    """Returns each layer's matrices; the generator fills what the circuit does not use."""
    return [layer_weights(*layer(basis), generator) for layer in _LAYERS]
