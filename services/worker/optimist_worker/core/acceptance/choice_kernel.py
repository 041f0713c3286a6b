"""The choice of tokens on a GPU without scores or noise in memory.

First what is cut off is found, a program for each row: top-k and top-p without sorting, by
bisection over the bits of the least logit that they leave (cf. FlashInfer's sampling kernels, which
draw until a token is in). Then the best token of each part of the vocabulary is found, and of these
the best.
"""

import torch
import triton
import triton.language as tl

from optimist_worker.core.acceptance.sampling_table import Needs, SamplingTable

_CUT_TILE = 4096
_CUT_WARPS = 16
_TILE = 512
_NUM_PARTS = 16
"""Of a row: one row alone occupies some processors, and many rows occupy all."""
_LOG2_E = tl.constexpr(1.4426950408889634)


def pick(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Is `choice.pick`."""
    logits = logits.contiguous()
    number, vocab_size = logits.shape
    tokens = logits.new_empty(number, dtype=torch.int64)
    largest = logits.new_empty(number)
    with torch.cuda.device_of(logits):
        pick_token[(number,)](logits, largest, tokens, vocab_size, _CUT_TILE, num_warps=_CUT_WARPS)
    return largest, tokens


def choose(
    scores: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    table: SamplingTable,
    needs: Needs,
) -> torch.Tensor:
    """Is `choice.choose`."""
    scores, tokens = scores.contiguous(), torch.empty_like(positions)
    number, vocab_size = scores.shape
    has_cuts = needs.cut_width > 0 or needs.cuts_min_p
    least = torch.empty_like(positions, dtype=torch.int32)
    floors = torch.empty_like(positions, dtype=torch.float64)
    part_values = floors.new_empty((number, _NUM_PARTS))
    part_tokens = least.new_empty((number, _NUM_PARTS))
    with torch.cuda.device_of(scores):
        if has_cuts:
            find_cuts[(number,)](
                scores,
                least,
                floors,
                slots,
                table.reals,
                table.integers,
                table.reals.shape[1],
                vocab_size,
                _CUT_TILE,
                num_warps=_CUT_WARPS,
            )
        choose_of_part[(number, _NUM_PARTS)](
            scores,
            least,
            floors,
            part_values,
            part_tokens,
            positions,
            slots,
            table.reals,
            table.integers,
            table.reals.shape[1],
            vocab_size,
            _TILE,
            has_cuts,
        )
        choose_token[(number,)](
            part_values, part_tokens, tokens, vocab_size, _NUM_PARTS, num_warps=1
        )
    return tokens


@triton.jit
def pick_token(logits, largest, tokens, vocab_size, tile: tl.constexpr):
    """Finds the largest logit of one row; the grid is `[n]`."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, tile)
    best = tl.full([tile], float("-inf"), tl.float32)
    token = tl.full([tile], 2**31 - 1, tl.int32)
    for first in range(0, vocab_size, tile):
        index = first + lane
        logit = _load(logits + row * vocab_size, index, vocab_size)
        # What is no number stays once it is there.
        is_better = ((logit > best) | (logit != logit)) & (best == best)
        best = tl.where(is_better, logit, best)
        token = tl.where(is_better, index, token)
    is_none = best != best
    has_none = tl.max(is_none.to(tl.int32), 0) > 0
    most = tl.max(tl.where(is_none, float("-inf"), best), 0)
    is_most = (has_none & is_none) | ((not has_none) & (best == most))
    chosen = tl.min(tl.where(is_most, token, 2**31 - 1), 0)
    most = tl.where(has_none, float("nan"), most)
    tl.store(largest + row, most.to(largest.dtype.element_ty))
    # Where all are less than any number, it is the first.
    tl.store(tokens + row, tl.where(chosen < vocab_size, chosen, 0).to(tl.int64))


@triton.jit
def find_cuts(
    scores,
    least_keys,
    floors,
    slots,
    reals,
    integers,
    num_slots,
    vocab_size,
    tile: tl.constexpr,
):
    """Finds the least key and the least score that a row's cuts leave; the grid is `[n]`."""
    row = tl.program_id(0).to(tl.int64)
    logits = scores + row * vocab_size
    lane = tl.arange(0, tile)
    slot = tl.load(slots + row)
    top_p = tl.load(reals + num_slots + slot)
    log_min_p = tl.load(reals + 2 * num_slots + slot)
    top_k = tl.load(integers + slot)
    least = tl.full([], -(2**31), tl.int32)
    floor = tl.full([], float("-inf"), tl.float64)
    if (log_min_p > float("-inf")) | (top_k < vocab_size) | (top_p <= 1.0):
        largest = tl.full([tile], float("-inf"), tl.float32)
        for first in range(0, vocab_size, tile):
            largest = tl.maximum(largest, _load(logits, first + lane, vocab_size))
        most = tl.max(largest, 0)
        temperature = tl.load(reals + slot)
        floor = most.to(tl.float64) / temperature + log_min_p
        factor = (1.0 / temperature * _LOG2_E).to(tl.float32)
        least = _cut(logits, vocab_size, most, factor, least, top_k, top_p, tile)
    tl.store(least_keys + row, least)
    tl.store(floors + row, floor)


@triton.jit
def choose_of_part(
    scores,
    least_keys,
    floors,
    part_values,
    part_tokens,
    positions,
    slots,
    reals,
    integers,
    num_slots,
    vocab_size,
    tile: tl.constexpr,
    has_cuts: tl.constexpr,
):
    """Chooses the token of a part of a row; the grid is `[n, parts]`."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits = scores + row * vocab_size
    lane = tl.arange(0, tile)
    slot = tl.load(slots + row)
    temperature = tl.load(reals + slot)
    least = tl.full([], -(2**31), tl.int32)
    floor = tl.full([], float("-inf"), tl.float64)
    if has_cuts:
        least, floor = tl.load(least_keys + row), tl.load(floors + row)
    seed = tl.load(integers + num_slots + slot)
    position = tl.load(positions + row).to(tl.int32)
    noise_factor = tl.load(integers + 2 * num_slots + slot).to(tl.float64)
    best = tl.full([tile], float("-inf"), tl.float64)
    token = tl.full([tile], 2**31 - 1, tl.int32)
    num_blocks = (vocab_size + 3) // 4
    size = tl.cdiv(num_blocks, tl.num_programs(1))
    end = tl.minimum((part + 1) * size, num_blocks)
    zero = tl.zeros([tile], tl.int32)
    for first in range(part * size, end, tile):
        block = first + lane
        words = tl.philox(seed, block, zero + position, zero, zero, 7)
        for word in tl.static_range(4):
            # Beyond the last block the index is that of another word's token.
            index = tl.where(block < end, word * num_blocks + block, vocab_size)
            logit = _load(logits, index, vocab_size)
            score = logit.to(tl.float64) / temperature
            is_left = (_key(logit) >= least) & (score >= floor)
            unit = (words[word].to(tl.float64) + 0.5) * 2.0**-32
            value = tl.where(is_left, score - tl.log(-tl.log(unit)) * noise_factor, float("-inf"))
            is_better = (value > best) | ((value == best) & (index < token))
            is_better &= index < vocab_size
            best = tl.where(is_better, value, best)
            token = tl.where(is_better, index, token)
    top = tl.max(best, 0)
    at = row * tl.num_programs(1) + part
    tl.store(part_values + at, top)
    tl.store(part_tokens + at, tl.min(tl.where(best == top, token, 2**31 - 1), 0))


@triton.jit
def choose_token(part_values, part_tokens, tokens, vocab_size, num_parts: tl.constexpr):
    """Chooses the token of a row of those of its parts; the grid is `[n]`."""
    row = tl.program_id(0).to(tl.int64)
    at = row * num_parts + tl.arange(0, num_parts)
    values, token = tl.load(part_values + at), tl.load(part_tokens + at)
    chosen = tl.min(tl.where(values == tl.max(values, 0), token, 2**31 - 1), 0)
    # Rows that are no numbers emit nothing, but index with what is chosen.
    tl.store(tokens + row, tl.where(chosen < vocab_size, chosen, 0).to(tl.int64))


@triton.jit
def _cut(logits, vocab_size, most, factor, least, top_k, top_p, tile: tl.constexpr):
    """Returns the least key that top-k and top-p leave, not below `least`."""
    if top_k < vocab_size:
        least = _least_kept(logits, vocab_size, most, 0.0, least, top_k.to(tl.float64), tile)
    if top_p <= 1.0:
        below = least.to(tl.int64) - 1
        enough = top_p * _weigh(logits, vocab_size, most, factor, below, least, tile)
        least_p = _least_kept(logits, vocab_size, most, factor, least, enough, tile)
        least = tl.maximum(least, least_p)
    return least


@triton.jit
def _load(logits, index, vocab_size):
    return tl.load(logits + index, mask=index < vocab_size, other=float("-inf")).to(tl.float32)


@triton.jit
def _key(logit):
    """Returns whole numbers in the order of the logits."""
    bits = logit.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _weigh(logits, vocab_size, most, factor, above, least, tile: tl.constexpr):
    """Returns the weights, 1 with a factor of 0, of logits above a key, and not below another."""
    total = tl.zeros([tile], tl.float64)
    for first in range(0, vocab_size, tile):
        index = first + tl.arange(0, tile)
        logit = _load(logits, index, vocab_size)
        key = _key(logit)
        is_in = (key > above) & (key >= least) & (index < vocab_size)
        # Less than nothing times nothing is no number.
        weight = tl.exp2(tl.maximum(logit - most, -1e30) * factor)
        total += tl.where(is_in, weight, 0.0).to(tl.float64)
    return tl.sum(total, 0)


@triton.jit
def _least_kept(logits, vocab_size, most, factor, least, enough, tile: tl.constexpr):
    """Returns the least key above which there are weights of less than `enough`."""
    low = least.to(tl.int64)
    high = _key(most).to(tl.int64)
    for _ in range(32):
        middle = (low + high) >> 1
        weight = _weigh(logits, vocab_size, most, factor, middle, least, tile)
        is_enough = weight >= enough
        low = tl.where(is_enough, middle + 1, low)
        high = tl.where(is_enough, high, middle)
    return tl.minimum(low, high).to(tl.int32)
