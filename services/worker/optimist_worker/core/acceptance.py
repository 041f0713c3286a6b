"""Coupled acceptance: which tokens a step emits, given the logits at every drafted position.

The token at position p is argmax(processed_logits + gumbel(seed, p)); a draft is accepted if it is
that token. By the Gumbel-max trick this samples from the processed distribution exactly, whatever
was drafted (cf. Daliri et al., "Coupling without communication and drafter-invariant speculative
decoding", 2024).
"""

import torch

from optimist_worker.core.noise import gumbel
from optimist_worker.core.row import Row
from optimist_worker.core.sampling import count_tokens, process_logits

_POSITIONS_AT_ONCE = 8
"""Sampling stops at the first wrong draft; more at once would be in vain, and leave the caches."""


def choose_tokens(logits: torch.Tensor, rows: list[Row]) -> list[list[int] | None]:
    """Chooses the token at each position of each row, as if the row's drafts before it held.

    Args:
        logits: `[sum(row.num_logits), vocab_size]`, in the order of the rows.
        rows: The rows of the batch.

    Returns:
        Per row its tokens, or None if the model's logits there are not numbers. Tokens behind the
        first wrong draft may be missing.
    """
    # NaN and infinity pass through a maximum, so one reduction finds them and the greedy tokens.
    largest, most_likely = logits.max(-1)
    finite, greedy = largest.isfinite().tolist(), most_likely.tolist()
    choices: list[list[int] | None] = []
    first = 0
    for row in rows:
        end = first + row.num_logits
        if not all(finite[first:end]):
            choices.append(None)
        elif row.slot.sampling.takes_argmax:
            choices.append(greedy[first:end])
        else:
            choices.append(_sample(logits[first:end], row) if end > first else [])
        first = end
    return choices


def accept(draft_token_ids: list[int], chosen: list[int]) -> list[int]:
    """Returns the emitted tokens: the drafts that were chosen anyway, and the one behind them.

    Args:
        draft_token_ids: `[num_drafts]`.
        chosen: The tokens chosen in place of the drafts and behind them, up to the first that
            differs from its draft or further.
    """
    num_accepted = 0
    while (
        num_accepted < len(draft_token_ids)
        and draft_token_ids[num_accepted] == chosen[num_accepted]
    ):
        num_accepted += 1
    return chosen[: num_accepted + 1]


def _sample(logits: torch.Tensor, row: Row) -> list[int]:
    """Chooses tokens under the row's sampling parameters, at least up to the first wrong draft."""
    slot, params = row.slot, row.slot.sampling
    counts = None
    if params.penalizes:
        counts = count_tokens(
            slot.token_ids,
            slot.num_prompt_tokens,
            row.draft_token_ids,
            logits.shape[-1],
            logits.device,
        )
    chosen: list[int] = []
    for first in range(0, row.num_logits, _POSITIONS_AT_ONCE):
        end = min(first + _POSITIONS_AT_ONCE, row.num_logits)
        part = None if counts is None else counts.rows(first, end)
        scores = process_logits(logits[first:end], params, part)
        if params.temperature > 0.0:
            positions = torch.arange(first, end, device=logits.device) + slot.num_tokens
            scores = scores + gumbel(params.seed, positions, logits.shape[-1])
        chosen += scores.argmax(-1).tolist()
        if chosen[first:] != row.draft_token_ids[first:end]:
            break
    return chosen
