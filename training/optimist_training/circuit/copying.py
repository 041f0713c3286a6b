"""A two-layer Llama whose initial weights copy what followed the same tokens earlier on.

Layer 0 has a head for each of the four tokens before, one for a window of some twenty tokens, and
one that says where the last turn of the assistant starts. In layer 1 a head looks for the position
whose four tokens and window before it are most like those up to here, and copies the token there
(induction heads: Olsson et al., arXiv 2209.11895). All scores are moderate, so that training can go
on from there.
"""

import math
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from optimist_training.circuit.basis import spherical_code

HEAD_DIM, NUM_HEADS, NUM_LAYERS = 64, 6, 2
# Neighbouring planes rotate a quarter as fast, so that most of them can compare content.
_ROPE_THETA = 4.0**32
_FIRST_CONTENT_PLANE = 7
_OFFSETS = (1, 2, 3, 4)
_SHARP = 30.0
"""Score of the attended position over all others, in a head for one offset."""
_WINDOW = {2: 5.0, 3: 10.0, 4: 20.0}
"""Score amplitudes of the planes that bound the window."""
_WINDOW_GAIN = 3.0
_MATCH = (60.0, 30.0, 20.0, 15.0)
"""Score of the same token at each distance."""
_WINDOW_MATCH = 20.0
_NOT_ANSWER = 6.0
_LOGIT_SCALE = 14.0
_NOISE = 0.02

_CODE, _NEXT = 10, 40


def _lay_out() -> tuple[dict[str, slice], int]:
    """Returns where everything lies in the residual stream, and how wide that is."""
    widths = {"one": 1, "code": _CODE, "window": _CODE}
    widths |= {f"before_{offset}": _CODE for offset in _OFFSETS}
    widths |= {"token": _NEXT, "answer": 1, "next": _NEXT}
    ends = list(accumulate(widths.values()))
    places = zip(widths.items(), ends, strict=True)
    size = -(-ends[-1] // (8 * NUM_HEADS)) * 8 * NUM_HEADS
    return {name: slice(end - width, end) for (name, width), end in places}, size


_LAYOUT, _SIZE = _lay_out()


def copying_model(
    vocab_size: int,
    answer_id: int | None,
    eos_token_id: int | None,
    max_positions: int,
    seed: int,
) -> LlamaForCausalLM:
    """Returns the model.

    Args:
        vocab_size: Of the target.
        answer_id: The token that starts the assistant's turn: what follows it is not copied.
            None if there is none.
        eos_token_id: The target's.
        max_positions: The target's.
        seed: Of the tokens' codes.
    """
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=_SIZE,
        # Feed-forward layers start with nothing to say.
        intermediate_size=128,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": _ROPE_THETA},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=eos_token_id,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, _NOISE)
            if "down_proj" in name or "o_proj" in name:
                parameter.zero_()
        _write(model, answer_id, seed)
    return model


def _write(model: LlamaForCausalLM, answer_id: int | None, seed: int) -> None:
    vocab_size = model.config.vocab_size
    codes = spherical_code(vocab_size, _CODE, seed).float()
    tokens = spherical_code(vocab_size, _NEXT, seed + 1).float()
    embedding = model.model.embed_tokens.weight
    embedding.zero_()
    embedding[:, _LAYOUT["one"]] = 1.0
    embedding[:, _LAYOUT["code"]] = codes
    embedding[:, _LAYOUT["token"]] = tokens
    if answer_id is not None:
        embedding[answer_id, _LAYOUT["answer"]] = 1.0
    model.lm_head.weight.zero_()
    model.lm_head.weight[:, _LAYOUT["next"]] = _LOGIT_SCALE * tokens
    # What a token has of unit length: constant, code and token; then also codes before and window.
    parts = (3.0, 3.0 + len(_OFFSETS) + 1.0)
    for layer, total in zip(model.model.layers, parts, strict=True):
        size = math.sqrt(total / _SIZE)
        layer.input_layernorm.weight.fill_(size)
        layer.post_attention_layernorm.weight.fill_(size)
    model.model.norm.weight.fill_(math.sqrt((parts[1] + 1.0) / _SIZE))
    _earlier_tokens(model.model.layers[0].self_attn)
    _matching(model.model.layers[1].self_attn)


def _earlier_tokens(attention: Any) -> None:
    """Writes layer 0."""
    for head, offset in enumerate(_OFFSETS):
        planes = dict.fromkeys(range(_FIRST_CONTENT_PLANE - 1), _SHARP)
        _at_offset(attention, head, planes, offset)
        _copy(attention, head, _LAYOUT["code"], _LAYOUT[f"before_{offset}"])
    window = len(_OFFSETS)
    _at_offset(attention, window, _WINDOW, 0)
    _copy(attention, window, _LAYOUT["code"], _LAYOUT["window"], _WINDOW_GAIN)
    turn = window + 1
    _compare(attention, turn, [(_LAYOUT["one"], _LAYOUT["answer"], 20.0)])
    _copy(attention, turn, _LAYOUT["answer"], _LAYOUT["answer"])


def _matching(attention: Any) -> None:
    """Writes layer 1."""
    before = [_LAYOUT[f"before_{offset}"] for offset in _OFFSETS]
    pairs = list(zip((_LAYOUT["code"], *before[:-1]), before, _MATCH, strict=True))
    pairs.append((_LAYOUT["window"], _LAYOUT["window"], _WINDOW_MATCH))
    _compare(attention, 0, pairs)
    _copy(attention, 0, _LAYOUT["token"], _LAYOUT["next"])
    # One head more of the same kind, that does not start at the same position.
    _compare(attention, 1, [(query, key, weight / 2) for query, key, weight in pairs])
    _copy(attention, 1, _LAYOUT["token"], _LAYOUT["next"], 0.25)
    for head, lane in ((0, _lanes()[-1]), (1, _lanes()[-1])):
        _rows(attention.q_proj, head)[lane, _LAYOUT["one"]] = 1.0
        _rows(attention.k_proj, head)[lane, _LAYOUT["answer"]] = -_NOT_ANSWER * math.sqrt(HEAD_DIM)


def _lanes() -> list[int]:
    half = HEAD_DIM // 2
    return [plane + part for plane in range(_FIRST_CONTENT_PLANE, half) for part in (0, half)]


def _rows(projection: Any, head: int) -> Tensor:
    weight: Tensor = projection.weight
    return weight[head * HEAD_DIM : (head + 1) * HEAD_DIM]


def _at_offset(attention: Any, head: int, planes: dict[int, float], offset: int) -> None:
    """Attends around the token `offset` positions before."""
    query, key = _rows(attention.q_proj, head), _rows(attention.k_proj, head)
    query.zero_()
    key.zero_()
    for plane, amplitude in planes.items():
        scale = math.sqrt(amplitude * math.sqrt(HEAD_DIM))
        angle = offset * _ROPE_THETA ** (-plane / (HEAD_DIM // 2))
        query[plane, _LAYOUT["one"]] = scale
        key[plane, _LAYOUT["one"]] = scale * math.cos(angle)
        key[plane + HEAD_DIM // 2, _LAYOUT["one"]] = scale * math.sin(angle)


def _compare(attention: Any, head: int, pairs: list[tuple[slice, slice, float]]) -> None:
    """Adds `weight * <query block, key block>` to the score for each pair."""
    query, key = _rows(attention.q_proj, head), _rows(attention.k_proj, head)
    query.zero_()
    key.zero_()
    lanes = iter(_lanes())
    for read, match, weight in pairs:
        scale = math.sqrt(weight * math.sqrt(HEAD_DIM))
        for number in range(read.stop - read.start):
            lane = next(lanes)
            query[lane, read.start + number] = scale
            key[lane, match.start + number] = scale


def _copy(attention: Any, head: int, read: slice, write: slice, gain: float = 1.0) -> None:
    """Copies a block of the attended tokens."""
    width = read.stop - read.start
    value = _rows(attention.v_proj, head)
    value.zero_()
    value[:width, read] = torch.eye(width)
    output: Tensor = attention.o_proj.weight
    output[write, head * HEAD_DIM : head * HEAD_DIM + width] = gain * torch.eye(width)
