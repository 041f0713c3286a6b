"""How logits are processed before a token is chosen from them."""

import math
from dataclasses import dataclass

import torch

from optimist_common.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """How often each token occurred before each position, int64 `[num_positions, vocab_size]`."""

    sequence: torch.Tensor
    """In prompt and output."""
    output: torch.Tensor
    """In the output."""

    def rows(self, first: int, end: int) -> "TokenCounts":
        """Returns the counts of the positions `[first, end)`."""
        return TokenCounts(self.sequence[first:end], self.output[first:end])


def count_tokens(
    token_ids: list[int],
    num_prompt_tokens: int,
    draft_token_ids: list[int],
    vocab_size: int,
    device: torch.device,
) -> TokenCounts:
    """Counts the tokens before each drafted position: the j-th row includes the drafts before j.

    Returns:
        Counts of `1 + len(draft_token_ids)` positions.
    """
    tokens = torch.tensor(token_ids, dtype=torch.int64, device=device)
    output = torch.bincount(tokens[num_prompt_tokens:], minlength=vocab_size)
    prompt = torch.bincount(tokens[:num_prompt_tokens], minlength=vocab_size)
    num_drafts = len(draft_token_ids)
    drafts = output.new_zeros((1 + num_drafts, vocab_size))
    if num_drafts:
        rows = torch.arange(1, 1 + num_drafts, device=device)
        drafts[rows, torch.tensor(draft_token_ids, device=device)] = 1
    outputs = output + drafts.cumsum(0)
    return TokenCounts(prompt + outputs, outputs)


def process_logits(
    logits: torch.Tensor, params: SamplingParams, counts: TokenCounts | None
) -> torch.Tensor:
    """Applies bias, penalties, temperature, top-k, top-p and min-p, in this order.

    Bias and penalties come first because they say what the model should have thought; repetition
    before presence and frequency as in vLLM. Then the temperature, and the cuts look at the
    distribution that is sampled from, in the order of transformers' logits processors.

    Args:
        logits: The model's, `[num_positions, vocab_size]`; not changed.
        params: The request's; temperature 0 leaves out everything from the temperature on.
        counts: Tokens before each position; needed only if `params.penalizes`.

    Returns:
        Float64 `[num_positions, vocab_size]`; tokens cut off are -inf.
    """
    scores = logits.double()
    if params.logit_bias:
        token_ids = torch.tensor(list(params.logit_bias), device=scores.device)
        bias = torch.tensor(list(params.logit_bias.values()), dtype=torch.float64)
        scores = scores.index_add(1, token_ids, bias.to(scores.device).expand(len(scores), -1))
    if counts is not None:
        scores = _penalize(scores, params, counts)
    if params.temperature == 0.0:
        return scores
    scores = scores / params.temperature
    if 0 < params.top_k < scores.shape[-1]:
        kept = scores.topk(params.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kept, -math.inf)
    if params.top_p < 1.0:
        scores = _cut_top_p(scores, params.top_p)
    if params.min_p > 0.0:
        # p < min_p * p_max, in logarithms.
        floor = scores.amax(-1, keepdim=True) + math.log(params.min_p)
        scores = scores.masked_fill(scores < floor, -math.inf)
    return scores


def _penalize(scores: torch.Tensor, params: SamplingParams, counts: TokenCounts) -> torch.Tensor:
    """Applies the penalty of Keskar et al. 2019 (repetition), then OpenAI's two."""
    if params.repetition_penalty != 1.0:
        penalty = params.repetition_penalty
        penalized = torch.where(scores > 0, scores / penalty, scores * penalty)
        scores = torch.where(counts.sequence > 0, penalized, scores)
    scores = scores - params.frequency_penalty * counts.output
    return scores - params.presence_penalty * (counts.output > 0)


def _cut_top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keeps the smallest set of most likely tokens whose probability reaches `top_p`."""
    ordered, token_ids = scores.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    ordered = ordered.masked_fill(before >= top_p, -math.inf)
    return torch.empty_like(scores).scatter_(1, token_ids, ordered)
