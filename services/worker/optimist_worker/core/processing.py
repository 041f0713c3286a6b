"""How the logits of many rows become the scores from which tokens are chosen."""

import math

import torch
from torch import Tensor

from optimist_worker.core.sampling_table import Needs, SamplingColumns, SamplingTable
from optimist_worker.core.token_counts import TokenCounts


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

    Args:
        logits: The model's, `[n, vocab_size]`; not changed.
        slots: Whose parameters hold for each row, int64 `[n]`.
        table: The parameters.
        needs: What the slots need at least; what they do not need is left out.
        counts: Tokens before each row's position; None leaves out the penalties, as drafters do.

    Returns:
        Float64 `[n, vocab_size]`; tokens cut off are -inf.
    """
    columns = table.gather(slots)
    scores = logits.double()
    if needs.biases:
        scores = scores + table.bias(slots)
    if counts is not None:
        scores = _penalize(scores, columns, counts)
    if not needs.samples:
        return scores
    scores = scores / columns.temperature[:, None]
    if needs.cuts_top_p:
        scores = _cut_top_k_and_top_p(scores, columns)
    elif needs.max_top_k:
        ordered = scores.topk(min(needs.max_top_k, scores.shape[-1]), dim=-1).values
        is_cut = scores < _smallest_kept(ordered, columns)
        scores = scores.masked_fill_(is_cut, -math.inf)
    if needs.cuts_min_p:
        # p < min_p * p_max, in logarithms.
        floor = scores.amax(-1, keepdim=True) + columns.log_min_p[:, None]
        scores = scores.masked_fill_(scores < floor, -math.inf)
    return scores


def _penalize(scores: Tensor, columns: SamplingColumns, counts: TokenCounts) -> Tensor:
    """Applies the penalty of Keskar et al. 2019 (repetition), then OpenAI's two."""
    is_seen, output = counts.is_seen[:, :-1], counts.output[:, :-1]
    penalty = columns.repetition_penalty[:, None]
    penalized = torch.where(scores > 0, scores / penalty, scores * penalty)
    scores = torch.where(is_seen, penalized, scores)
    scores = scores - columns.frequency_penalty[:, None] * output
    return scores - columns.presence_penalty[:, None] * (output > 0)


def _smallest_kept(ordered: Tensor, columns: SamplingColumns) -> Tensor:
    """Returns the score of each row's k-th most likely token, `[n, 1]`, -inf if k is too large."""
    width = ordered.shape[-1]
    last = columns.top_k.clamp(max=width)[:, None] - 1
    return ordered.gather(1, last).masked_fill_(columns.top_k[:, None] > width, -math.inf)


def _cut_top_k_and_top_p(scores: Tensor, columns: SamplingColumns) -> Tensor:
    """Keeps the k most likely tokens, and of these the fewest whose probability reaches top-p."""
    ordered, token_ids = scores.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(ordered < _smallest_kept(ordered, columns), -math.inf)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    ordered = ordered.masked_fill_(before >= columns.top_p[:, None], -math.inf)
    return torch.empty_like(scores).scatter_(1, token_ids, ordered)
