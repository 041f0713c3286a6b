"""Writes attention heads and neurons, one feature at a time, into a Llama layer's matrices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

HIDDEN_SIZE = 320

KIND_FEATURES = ("rename", "constant", "delete", "insert", "docstring", "annotate", "repeat")

# What the embedding says of a token.
TOKEN_FEATURES = (
    "word", "newline", "backtick", "digit", "digit_value", "colon_end", "colon_space",
    "user", "assistant",
)  # fmt: skip

# The same of the token one and two positions before, and so on.
PREVIOUS_FEATURES = (
    "word_1", "newline_1", "backtick_1", "digit_1", "digit_value_1", "user_1",
    "word_2", "newline_2", "digit_value_2", "colon_end_2", "word_3", "word_4", "word_5",
)  # fmt: skip

COMPUTED_FEATURES = (
    "in_user", "in_answer",
    # The token starts a word, or the one before did; the token follows a word, or a number.
    "starts_word", "starts_word_1", "ends_word", "ends_number",
    # What the counting heads count, apart for prompt and answer, and what they found.
    "line_user", "line_answer", "quote_user", "word_user", "word_answer",
    "lines", "quotes", "words", "run_user", "run_answer", "in_word", "run_length",
    "starts_body", "old_end", "new_span", "line_number",
    "is_old", "target_line", "body_line",
    "line_shift", "in_new_line", "in_header", "annotated", "after_annotation",
    "in_new_word", "continues_new", "ends_new_line",
    "next_is_old", "word_is_old", "copied_word", "starts_new",
)  # fmt: skip

BLOCKS = {
    # Codes of the token: three independent ones, so that each can be matched alone.
    "code": 16, "code_more": 16, "piece": 9,
    "code_1": 16,
    "piece_1": 9, "piece_2": 9, "piece_3": 9, "piece_4": 9, "piece_5": 9,
    # Pieces 2 to 5 of the word that just ended, counted from its end; padding beyond its start.
    "slot_2": 9, "slot_3": 9, "slot_4": 9, "slot_5": 9,
    "span": 12, "cell": 12, "line": 10, "column": 12, "run": 8,
    "next": 41,
}  # fmt: skip


@dataclass(frozen=True)
class Subspaces:
    """Where each feature and block lies."""

    slices: dict[str, slice]

    @staticmethod
    def build() -> "Subspaces":
        """Lays all features and blocks side by side."""
        widths = {"one": 1}
        for name in (*KIND_FEATURES, *(f"ask_{kind}" for kind in KIND_FEATURES)):
            widths[name] = 1
        widths |= dict.fromkeys((*TOKEN_FEATURES, *PREVIOUS_FEATURES, *COMPUTED_FEATURES), 1)
        widths |= BLOCKS
        slices, start = {}, 0
        for name, width in widths.items():
            slices[name] = slice(start, start + width)
            start += width
        if start > HIDDEN_SIZE:
            raise ValueError(f"{start} dimensions do not fit into {HIDDEN_SIZE}")
        return Subspaces(slices)

    def rows(self, *names: str) -> Tensor:
        """Returns the rows that read blocks, [width, hidden_size]."""
        identity = torch.eye(HIDDEN_SIZE, dtype=torch.float64)
        return torch.cat([identity[self.slices[name]] for name in names])

    def row(self, **weights: float) -> Tensor:
        """Returns one row that reads a weighted sum of features, [hidden_size]."""
        total = torch.zeros(HIDDEN_SIZE, dtype=torch.float64)
        for name, weight in weights.items():
            total += weight * self.rows(name)[0]
        return total


NUM_HEADS, HEAD_DIM = 5, 64
INTERMEDIATE_SIZE = 256

# Neighbouring planes rotate a quarter as fast: six separate positions over 2,000 tokens, and the
# others hardly rotate, so that they can compare content.
ROPE_THETA = 0.25**-32
_POSITION_PLANES = range(6)
_BLOCK_PLANES = range(7, 30)
_FEATURE_PLANES = range(30, 32)
"""For single features: their weights are large, so they get the planes that rotate least."""
_POSITION_WEIGHT = 30.0

_SHARPNESS = 64.0
_HALF_RAMP = 0.25
_UNWRITTEN = 0.02
"""Standard deviation of weights that the circuit does not use; their outputs are zero."""


class Head:
    """One attention head; rows are linear functions of the (normalised) residual stream."""

    def __init__(self) -> None:
        self.query = torch.zeros(HEAD_DIM, HIDDEN_SIZE, dtype=torch.float64)
        self.key = torch.zeros_like(self.query)
        self.value = torch.zeros_like(self.query)
        self.output = torch.zeros(HIDDEN_SIZE, HEAD_DIM, dtype=torch.float64)
        self._block_lanes = _lanes(_BLOCK_PLANES)
        self._feature_lanes = _lanes(_FEATURE_PLANES)
        self._num_values = 0

    def match(self, query: Tensor, key: Tensor, weight: float = 1.0) -> None:
        """Adds `weight * <query, key>` to the score; both are [width, hidden_size] or one row.

        A weight of 2 n^2, or 1 and halves in the rows, makes the numbers exact in 16 bits.
        """
        if query.dim() == 1:
            lanes, parts = self._feature_lanes, (4.0, weight * math.sqrt(HEAD_DIM) / 4.0)
        else:
            lanes, parts = self._block_lanes, (math.sqrt(weight * math.sqrt(HEAD_DIM)),) * 2
        for query_row, key_row in zip(_matrix(query), _matrix(key), strict=True):
            lane = lanes.pop()
            self.query[lane], self.key[lane] = parts[0] * query_row, parts[1] * key_row

    def at_offset(self, offset: int, one: Tensor) -> None:
        """Attends to the token `offset` positions before; `one` is the row that reads 1."""
        scale = math.sqrt(_POSITION_WEIGHT * math.sqrt(HEAD_DIM))
        for plane in _POSITION_PLANES:
            angle = offset * ROPE_THETA ** (-plane / (HEAD_DIM // 2))
            self.query[plane] = scale * one
            self.key[plane] = scale * math.cos(angle) * one
            self.key[plane + HEAD_DIM // 2] = scale * math.sin(angle) * one

    def copy(self, read: Tensor, write: Tensor) -> None:
        """Adds what `read` reads at the attended token along `write`, both [width, hidden]."""
        for read_row, write_row in zip(_matrix(read), _matrix(write), strict=True):
            self.value[self._num_values] = read_row
            self.output[:, self._num_values] = write_row
            self._num_values += 1


def _matrix(rows: Tensor) -> Tensor:
    """Makes one row a matrix of one row."""
    return rows.reshape(-1, HIDDEN_SIZE)


def _lanes(planes: range) -> list[int]:
    """Returns the two dimensions of each plane."""
    return [plane + part for plane in planes for part in (0, HEAD_DIM // 2)]


@dataclass
class _Neuron:
    gate: Tensor
    up: Tensor
    down: Tensor


class Neurons:
    """The feed-forward part of a layer."""

    def __init__(self, one: Tensor) -> None:
        self._one = one
        self.all: list[_Neuron] = []

    def gated(self, condition: Tensor, up: Tensor, down: Tensor) -> None:
        """Adds `up` along `down` where `condition` reads 1/2, nothing where it reads -1/2."""
        height = _silu(_SHARPNESS / 2)
        self.all.append(_Neuron(_SHARPNESS * condition, up, down / height))

    def all_of(self, condition: Tensor, count: int, down: Tensor) -> None:
        """Adds `down` where `condition`, a sum of features, reaches its maximum `count`."""
        self.gated(condition - (count - 0.5) * self._one, self._one, down)

    def step(self, threshold: Tensor, down: Tensor) -> None:
        """Adds `down` where `threshold` reads more than zero: a ramp of width 1/2."""
        height = 2 * _SHARPNESS * _HALF_RAMP
        for sign in (1, -1):
            gate = _SHARPNESS * (threshold + sign * _HALF_RAMP * self._one)
            self.all.append(_Neuron(gate, self._one, sign * down / height))


def _silu(value: float) -> float:
    return value / (1 + math.exp(-value))


def layer_weights(
    heads: Sequence[Head],
    neurons: Neurons,
    generator: torch.Generator,
    num_heads: int = NUM_HEADS,
    intermediate_size: int = INTERMEDIATE_SIZE,
) -> dict[str, Tensor]:
    """Returns a layer's matrices under the names they have in a Llama layer."""
    if len(heads) > num_heads or len(neurons.all) > intermediate_size:
        raise ValueError(f"{len(heads)} heads and {len(neurons.all)} neurons do not fit")

    def unwritten(rows: int) -> Tensor:
        noise = torch.randn(rows, HIDDEN_SIZE, generator=generator, dtype=torch.float64)
        return _UNWRITTEN * noise

    spare_heads = (num_heads - len(heads)) * HEAD_DIM
    spare_neurons = intermediate_size - len(neurons.all)
    query, key, value = (
        torch.cat([*(getattr(head, name) for head in heads), unwritten(spare_heads)])
        for name in ("query", "key", "value")
    )
    no_output = torch.zeros(HIDDEN_SIZE, spare_heads, dtype=torch.float64)
    silent = torch.zeros(HIDDEN_SIZE, spare_neurons, dtype=torch.float64)
    columns = [neuron.down[:, None] for neuron in neurons.all]
    return {
        "self_attn.q_proj.weight": query,
        "self_attn.k_proj.weight": key,
        "self_attn.v_proj.weight": value,
        "self_attn.o_proj.weight": torch.cat([*(head.output for head in heads), no_output], 1),
        "mlp.gate_proj.weight": _stack([n.gate for n in neurons.all], unwritten(spare_neurons)),
        "mlp.up_proj.weight": _stack([n.up for n in neurons.all], unwritten(spare_neurons)),
        "mlp.down_proj.weight": torch.cat([*columns, silent], dim=1),
    }


def _stack(rows: list[Tensor], rest: Tensor) -> Tensor:
    return torch.cat([*(row[None] for row in rows), rest])
