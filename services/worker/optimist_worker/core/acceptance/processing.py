"""How the logits of many rows become the scores from which tokens are chosen."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from optimist_worker.core.acceptance.sampling_table import Needs, SamplingColumns, SamplingTable


@dataclass(slots=True)
class TokenCounts:
    """Counts before each of n positions, with one more column for what is not counted."""

    is_seen: Tensor
    """Whether the token is in prompt or output, bool `[n, vocab_size + 1]`."""
    output: Tensor
    """How often it is in the output, int32 `[n, vocab_size + 1]`."""

    def with_drafts(self, rows: Tensor, token_ids: Tensor, is_before: Tensor) -> "TokenCounts":
        """Counts on along the drafts before each of m positions.

        Each goes on from the counts of a row, int64 `[m]`, by those of its drafts, int64 `[m, K]`,
        that lie before it, bool `[m, K]`.
        """
        nowhere = self.output.shape[1] - 1
        indices = torch.where(is_before, token_ids.clamp(0, nowhere), nowhere)
        is_seen = self.is_seen.index_select(0, rows).scatter_(1, indices, True)
        output = self.output.index_select(0, rows)
        ones = torch.ones_like(indices, dtype=output.dtype)
        return TokenCounts(is_seen, output.scatter_add_(1, indices, ones))


def count_tokens(
    token_ids: Tensor, num_prompt_tokens: Tensor, num_tokens: Tensor, vocab_size: int
) -> TokenCounts:
    """Counts the known tokens of each row, prompt and output `[R, L]`."""
    num_rows, length = token_ids.shape
    indices = torch.arange(length, device=token_ids.device)
    known = torch.where(indices < num_tokens[:, None], token_ids.long(), vocab_size)
    output = torch.where(indices < num_prompt_tokens[:, None], vocab_size, known)
    shape = (num_rows, vocab_size + 1)
    is_seen = torch.zeros(shape, dtype=torch.bool, device=token_ids.device)
    counts = torch.zeros(shape, dtype=torch.int32, device=token_ids.device)
    ones = torch.ones_like(output, dtype=torch.int32)
    return TokenCounts(is_seen.scatter_(1, known, True), counts.scatter_add_(1, output, ones))


_FIRST_CUT_WIDTH = 64
"""Most likely tokens among which the CPU first looks for the end of top-p."""


def process(
    logits: Tensor,
    slots: Tensor,
    table: SamplingTable,
    needs: Needs,
    counts: TokenCounts | None = None,
) -> Tensor:
    """Applies bias, penalties, temperature, top-k, top-p and min-p, in this order.

    Bias and penalties come first because they say what the model should have thought; repetition
    before presence and frequency as in vLLM. Then the temperature, and the cuts look at the
    distribution that is sampled from, in the order of transformers' logits processors. Greedy rows
    are neither scaled nor cut.

    The logits, `[n, vocab_size]`, are not changed; the slots say whose parameters hold for each.
    What they do not need is left out. `counts` are of the tokens before each row's position; None
    leaves out the penalties, as drafters do. Returns float64; tokens cut off are -inf.
    """
    columns = table.gather(slots)
    return cut(adjust(logits, slots, table, needs, counts), columns, needs)


def adjust(
    logits: Tensor,
    slots: Tensor,
    table: SamplingTable,
    needs: Needs,
    counts: TokenCounts | None,
) -> Tensor:
    """Applies bias and penalties: in float32, or float64 as the logits are, if there are any.

    See `process`.
    """
    if needs.biases or counts is not None:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if needs.biases:
        logits = logits + table.bias(slots)
    return logits if counts is None else _penalize(logits, table.gather(slots), counts)


def cut(scores: Tensor, columns: SamplingColumns, needs: Needs) -> Tensor:
    """Applies temperature, top-k, top-p and min-p to what `adjust` returns, see `process`."""
    scores = scores.double()
    if not needs.samples:
        return scores
    scores = scores / columns.temperature[:, None]
    if needs.cut_width:
        floor = _least_kept(scores, columns, needs)
        scores = scores.masked_fill_(scores < floor, -math.inf)
    if needs.cuts_min_p:
        # p < min_p * p_max, in logarithms.
        floor = scores.amax(-1, keepdim=True) + columns.log_min_p[:, None]
        scores = scores.masked_fill_(scores < floor, -math.inf)
    return scores


def _penalize(scores: Tensor, columns: SamplingColumns, counts: TokenCounts) -> Tensor:
    """Applies the penalty of Keskar et al. 2019 (repetition), then OpenAI's two."""
    is_seen, output = counts.is_seen[:, :-1], counts.output[:, :-1]
    repetition, frequency, presence = (
        penalty[:, None].to(scores.dtype)
        for penalty in (
            columns.repetition_penalty,
            columns.frequency_penalty,
            columns.presence_penalty,
        )
    )
    penalized = torch.where(scores > 0, scores / repetition, scores * repetition)
    scores = torch.where(is_seen, penalized, scores)
    return scores - frequency * output - presence * (output > 0)


def _least_kept(scores: Tensor, columns: SamplingColumns, needs: Needs) -> Tensor:
    """Returns the least score that top-k and top-p leave, `[n, 1]`; ties with it stay as well.

    They keep the k most likely tokens, and of these the fewest whose probability reaches top-p.
    """
    most = min(needs.cut_width, scores.shape[-1])
    if not needs.cuts_top_p:
        return _kth_score(scores.topk(most, dim=-1).values, columns)
    # Few tokens mostly have all of top-p, and on the CPU it costs nothing to look whether they do.
    width = min(most, _FIRST_CUT_WIDTH) if scores.device.type == "cpu" else most
    floor, is_enough = _top_p_floor(scores, scores.topk(width, dim=-1).values, columns)
    while width < most and not bool(is_enough.all()):
        width = min(most, 8 * width)
        floor, is_enough = _top_p_floor(scores, scores.topk(width, dim=-1).values, columns)
    return floor


def _kth_score(ordered: Tensor, columns: SamplingColumns) -> Tensor:
    """Returns the score of each row's k-th most likely token, `[n, 1]`, -inf if k is too large."""
    top_k, width = columns.top_k[:, None], ordered.shape[-1]
    return ordered.gather(1, top_k.clamp(max=width) - 1).masked_fill_(top_k > width, -math.inf)


def _top_p_floor(
    scores: Tensor, ordered: Tensor, columns: SamplingColumns
) -> tuple[Tensor, Tensor]:
    """Looks for the least score that top-k and top-p leave among the largest ones.

    These are `ordered`, descending, `[n, width]`. Returns the score, and whether the row's cuts
    need no more of them, `[n, 1]` each.
    """
    width = ordered.shape[-1]
    top_k, top_p = columns.top_k[:, None], columns.top_p[:, None]
    floor = _kth_score(ordered, columns)
    total = scores.masked_fill(scores < floor, -math.inf).logsumexp(-1, keepdim=True)
    probabilities = (ordered.masked_fill(ordered < floor, -math.inf) - total).exp()
    is_in = probabilities.cumsum(-1) - probabilities < top_p
    ends_beyond = is_in[:, -1:]
    last = torch.where(is_in, ordered, math.inf).amin(-1, keepdim=True)
    is_enough = (top_k <= width) | (top_p == math.inf) | ~ends_beyond
    is_enough &= (top_k <= width) | (top_k == scores.shape[-1])
    return torch.where(ends_beyond, floor, last.maximum(floor)), is_enough
