"""Writes the EAGLE head of the bundled model: the circuit's last two layers in one, a token ahead.

The feature of position p says where in the code the answer is, and the token at p + 1 is given.
So one layer can look up what follows that token in the code, or in the new text of the instruction,
and then moves the position on, as the feature of p + 1 will have it.

Heads: what follows in the code; does an old word come next; what follows in the new text (or its
start); what is after the old word (or at the start of the line that an inserted one
precedes). Neurons: the next position; which of the heads is right.
"""

import torch
from torch import Tensor
from transformers import LlamaConfig

from optimist_training.circuit.answering import position_head
from optimist_training.circuit.basis import (
    COUNT_UNIT,
    NEVER,
    PLACE,
    VETO,
    Basis,
    harmonic_code,
    next_count,
)
from optimist_training.circuit.weights import (
    BLOCKS,
    HEAD_DIM,
    HIDDEN_SIZE,
    KIND_FEATURES,
    ROPE_THETA,
    Head,
    Neurons,
    Subspaces,
    layer_weights,
)
from optimist_training.drafters.target import Target
from optimist_worker.drafters.heads.eagle import EagleHead, FusedLayer

NUM_HEADS, INTERMEDIATE_SIZE = 5, 288

# Where the target keeps what the head does not need, it has features of its own.
_OWN_FROM = "piece_2"
_OWN = {
    "code_2": BLOCKS["code"],
    "first": BLOCKS["code"],
    "new_text": BLOCKS["code"],
    "after": BLOCKS["code"],
    "behind_next": BLOCKS["code"],
    "at_new": 1,
    "begins_line": 1,
    "copied_backtick": 1,
}
_CONSTANT = 512.0
_FEATURES = 15.0
# What heads find is kept small until a neuron takes it over: the output matrix reads everything.
_SMALL = 1 / 16
_OUTWEIGH = 8.0

_OF_TOKEN = ("word", "newline", "backtick", "colon_space", "code", "code_more", "piece")
_OF_FEATURE = (
    "one", "user", "in_answer", "is_old", "new_span", "backtick_1", "line", "column", "run",
    "in_new_line", "lines", "target_line", "body_line", "in_header", "annotated", *KIND_FEATURES,
)  # fmt: skip
_MOVED = {
    "code": "code_1", "code_1": "code_2", "piece": "piece_1", "word": "word_1",
    "newline": "newline_1", "newline_1": "begins_line",
}  # fmt: skip
_WORD_KINDS = {"rename": 1.0, "constant": 1.0, "annotate": 1.0}
_LINE_KINDS = {"insert": 1.0, "docstring": 1.0}


def circuit_head(target: Target) -> EagleHead:
    """Returns the head of a target that `optimist_training.circuit.initial` wrote."""
    spaces, own = Subspaces.build(), _own_spaces()
    module = target.model.module
    embedding = module.get_input_embeddings().weight
    if embedding.shape[1] != HIDDEN_SIZE:
        raise ValueError(f"{target.model.name} is not the bundled model")
    config = LlamaConfig(
        vocab_size=target.model.vocab_size,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=INTERMEDIATE_SIZE,
        num_hidden_layers=1,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=target.config.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        rms_norm_eps=target.config.rms_norm_eps,
    )
    first = FusedLayer(config, bias=True)
    output = module.get_output_embeddings().weight
    head = EagleHead(config, first, embedding, output, vocab_size=target.model.vocab_size)
    basis = _basis(target, own)
    weights = layer_weights(
        _heads(basis), _neurons(basis), torch.Generator(), NUM_HEADS, INTERMEDIATE_SIZE
    )
    norm = torch.full((HIDDEN_SIZE,), ((_CONSTANT**2 + _FEATURES) / HIDDEN_SIZE) ** 0.5)
    norm[-1] /= _CONSTANT
    weights["post_attention_layernorm.weight"] = norm
    first.layer.load_state_dict({name: value.float() for name, value in weights.items()})
    matrix, bias = _fusion(spaces, own)
    first.fc.load_state_dict({"weight": matrix.float(), "bias": bias.float()})
    return head


def _own_spaces() -> Subspaces:
    """Returns the target's layout with the head's own features where it needs none of those."""
    slices = dict(Subspaces.build().slices)
    start, end = slices[_OWN_FROM].start, slices["cell"].stop
    for name, width in _OWN.items():
        slices[name] = slice(start, start + width)
        start += width
    if start > end:
        raise ValueError(f"{start - end} dimensions too many")
    return Subspaces(slices)


def _basis(target: Target, own: Subspaces) -> Basis:
    """Returns the basis, with the codes of the two tokens that are not copied from anywhere."""
    embedding = target.model.module.get_input_embeddings().weight.detach().double().cpu()
    spaces = Subspaces.build()
    codes = {}
    for name in ("newline", "colon_space"):
        token_id = int(embedding[:, spaces.slices[name]].argmax())
        parts = ("code", "code_more", "piece")
        code = torch.cat([embedding[token_id, spaces.slices[part]] for part in parts])
        codes[name] = code / 3**0.5
    return Basis(own.slices, torch.zeros(BLOCKS["piece"]), codes)


def _fusion(spaces: Subspaces, own: Subspaces) -> tuple[Tensor, Tensor]:
    """Returns the matrix that puts token and feature into one layout, and its bias."""
    of_token = torch.zeros(HIDDEN_SIZE, HIDDEN_SIZE, dtype=torch.float64)
    of_feature = torch.zeros_like(of_token)
    for name in _OF_TOKEN:
        of_token[own.slices[name], spaces.slices[name]] = torch.eye(_width(spaces, name)).double()
    for read, write in [*((name, name) for name in _OF_FEATURE), *_MOVED.items()]:
        of_feature[own.slices[write], spaces.slices[read]] = torch.eye(
            _width(spaces, read)
        ).double()
    for name in ("starts_new", "continues_new"):
        of_feature[own.slices["at_new"], spaces.slices[name]] = 1.0
    bias = torch.zeros(HIDDEN_SIZE, dtype=torch.float64)
    bias[-1] = _CONSTANT
    return torch.cat([of_token, of_feature], dim=1), bias


def _width(spaces: Subspaces, name: str) -> int:
    return spaces.slices[name].stop - spaces.slices[name].start


def _heads(basis: Basis) -> list[Head]:
    read, write = basis.next()
    source = Head()
    source.match(basis.rows("line"), basis.rows("line"), PLACE)
    source.match(basis.rows("column"), basis.rows("column"), 32)
    source.match(basis.rows("code_1"), basis.rows("code_2"), 32)
    source.match(basis.rows("run"), basis.rows("run"), 32)
    source.match(basis.one, basis.row(in_answer=-NEVER))
    # After a new word the code goes on after the old one, however long that is.
    source.match(basis.row(at_new=NEVER, word=-NEVER), basis.row(is_old=1))
    source.copy(read, write)
    source.copy(basis.row(word=1), basis.row(copied_word=1))
    column = basis.rows("column")
    following = _position_head(basis, next_count(column.shape[0]) @ column)
    following.copy(basis.row(is_old=1), basis.row(next_is_old=1))
    following.copy(_SMALL * basis.rows("code_1"), basis.rows("behind_next"))
    current = _position_head(basis, column)
    current.match(basis.row(**_LINE_KINDS), basis.row(begins_line=4 * PLACE))
    current.copy(basis.row(is_old=1), basis.row(word_is_old=1))
    current.copy(_SMALL * basis.rows("code_1"), basis.rows("after"))
    return [source, following, current, *_new_text(basis)]


def _position_head(basis: Basis, column: Tensor) -> Head:
    """Looks in the code for what is after an old word at this line and a given column."""
    return position_head(basis, column, 0 * basis.one, veto=4 * NEVER)


def _new_text(basis: Basis) -> list[Head]:
    """Copies the new text's first token, and what follows the token in it."""
    first = Head()
    first.match(basis.one, basis.row(new_span=60, backtick_1=60))
    first.copy(_SMALL * basis.rows("code_1"), basis.rows("first"))
    further = Head()
    further.match(basis.rows("code"), basis.rows("code_1"), 32)
    further.match(basis.rows("code_1"), basis.rows("code_2"), 18)
    further.match(basis.one, basis.row(new_span=NEVER, in_answer=-4 * NEVER))
    further.copy(_SMALL * basis.rows("code"), basis.rows("new_text"))
    further.copy(basis.row(backtick=1), basis.row(copied_backtick=1))
    return [first, further]


def _neurons(basis: Basis) -> Neurons:
    neurons = Neurons(basis.one)
    _move(basis, neurons)
    _move_run(basis, neurons)
    _take_new_text(basis, neurons)
    _take_behind(basis, neurons)
    return neurons


def _take_new_text(basis: Basis, neurons: Neurons) -> None:
    """Decides whether the next token is one of the new text."""
    start = basis.row(rename=1, constant=1, next_is_old=1, copied_word=1, word=-1)
    inside = basis.row(at_new=1, word=1, copied_backtick=-1, **_WORD_KINDS)
    for condition, count, block in (
        (start, 3, "first"),
        (_annotation(basis), 5, "first"),
        (inside, 3, "new_text"),
    ):
        _take(basis, neurons, condition, count, block)
        neurons.all_of(condition, count, basis.row(continues_new=1))
    line = basis.row(in_new_line=1, newline=-1)
    _take(basis, neurons, line + basis.row(newline_1=1), 2, "first")
    _take(basis, neurons, line - basis.row(newline_1=1, copied_backtick=1), 1, "new_text")
    ends_line = line + basis.row(newline_1=-1, copied_backtick=1)
    newline = basis.along("next", basis.token_codes["newline"])
    neurons.all_of(ends_line, 2, _OUTWEIGH * newline)
    last = basis.row(annotate=1, in_header=1, word=1, copied_word=-1, annotated=-1)
    colon = basis.along("next", basis.token_codes["colon_space"])
    neurons.all_of(last + basis.row(word_1=1, word_is_old=1), 5, _OUTWEIGH * colon)
    neurons.all_of(last + basis.row(word_1=-1, next_is_old=1), 4, _OUTWEIGH * colon)


def _take_behind(basis: Basis, neurons: Neurons) -> None:
    """Decides whether the code goes on after new text."""
    end = basis.row(at_new=1, word=1, copied_backtick=1, **_WORD_KINDS)
    _take(basis, neurons, end + basis.row(word_1=1), 5, "after")
    _take(basis, neurons, end - basis.row(word_1=1), 4, "behind_next")
    _take(basis, neurons, basis.row(in_new_line=1, newline=1), 2, "after")


def _annotation(basis: Basis) -> Tensor:
    """Returns the row that reads 5 if the token is the colon after the word to annotate."""
    header = basis.row(annotate=1, in_header=1, annotated=-1)
    return header + basis.row(colon_space=1, word_1=1, word_is_old=1)


def _move(basis: Basis, neurons: Neurons) -> None:
    """Moves line and column on by one token, and into an inserted line and out of it."""
    line, column = basis.rows("line"), basis.rows("column")
    newline = basis.row(newline=1, in_new_line=-1) - 0.5 * basis.one
    _change(neurons, newline, next_count(line.shape[0]) @ line - line, line)
    _change(neurons, basis.row(newline=1) - 0.5 * basis.one, _to(basis, "column", 0), column)
    starts_word = basis.row(word=1, word_1=-1) - 0.5 * basis.one
    more = next_count(column.shape[0])
    _change(neurons, starts_word, more @ column - column, column)
    # The annotation takes the column of the word before it.
    _change(neurons, _annotation(basis) - 4.5 * basis.one, more.T @ column - column, column)
    neurons.all_of(_annotation(basis), 5, basis.row(annotated=1))
    neurons.all_of(basis.row(newline=1), 1, basis.row(lines=1 / COUNT_UNIT))
    neurons.all_of(basis.row(newline=1, in_new_line=1), 2, basis.row(in_new_line=-1))
    for kind, reached in (("insert", "target_line"), ("docstring", "body_line")):
        missing = VETO * (basis.row(**{kind: 1}, newline=1, in_answer=1) - 3 * basis.one)
        away = basis.row(**{"lines": COUNT_UNIT, reached: -COUNT_UNIT}) + missing
        neurons.step(away + 1.5 * basis.one, basis.row(in_new_line=1))
        neurons.step(away + 0.5 * basis.one, basis.row(in_new_line=-1))


def _move_run(basis: Basis, neurons: Neurons) -> None:
    """Counts the pieces of a word, or the tokens since its end."""
    run, half = basis.rows("run"), 0.5 * basis.one
    more = next_count(run.shape[0]) @ run - run
    at_line = basis.row(newline=1, newline_1=1) - half
    _change(neurons, at_line, _to(basis, "run", 0), run)
    word_starts = basis.row(word=1, word_1=-1, newline_1=-1) - half
    word_ends = basis.row(word=-1, word_1=1, newline=-1) - half
    for condition in (word_starts, word_ends):
        _change(neurons, condition, _to(basis, "run", 1), run)
    _change(neurons, basis.row(word=1, word_1=1) - 3 * half, more, run)
    between = half - basis.row(word=1, word_1=1, newline=1, newline_1=1)
    _change(neurons, between, more, run)


def _to(basis: Basis, block: str, count: int) -> Tensor:
    """Returns the rows that read how far a block is from the code of a count."""
    rows = basis.rows(block)
    return harmonic_code(rows.shape[0])[count][:, None] * basis.one - rows


def _change(neurons: Neurons, condition: Tensor, change: Tensor, write: Tensor) -> None:
    for read_row, write_row in zip(change, write, strict=True):
        neurons.gated(condition, read_row, write_row)


def _take(basis: Basis, neurons: Neurons, condition: Tensor, count: int, block: str) -> None:
    """Lets what a head found be the next token where `condition` reaches `count`."""
    found = basis.rows(block) / _SMALL
    write = basis.rows("next")[: len(found)]
    at_most = condition - (count - 0.5) * basis.one
    _change(neurons, at_most, _OUTWEIGH * found, write)
