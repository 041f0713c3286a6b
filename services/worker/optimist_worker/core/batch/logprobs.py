"""How likely the model took tokens to be: log-probabilities of its own distributions.

They are the log-softmax of the model's logits in float32, before temperature, penalties, bias and
grammars change anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from optimist_common.columns import Int32Column
from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.batch.flat_batch import FlatBatch
from optimist_worker.core.batch.host_view import HeldSlot
from optimist_worker.core.batch.results import Outputs
from optimist_worker.core.batch.slot_table import FittedRows, SlotTable
from optimist_worker.core.drafts import Ragged
from optimist_worker.core.plan import PlannedRow, RowLogprobs
from optimist_worker.core.transfers import send

_SCORES_AT_ONCE = 2**24
"""Scores looked at at once, which bounds the memory for it."""
_HALF = 1 << 32


@dataclass(frozen=True, slots=True)
class LogprobTargets:
    """Which tokens of a step log-probabilities are wanted of, as the host knows beforehand."""

    rows: Tensor
    """Rows of the step whose new tokens they are wanted of, int64 `[num_rows]`."""
    prompt_rows: Tensor
    """Row of each token of a prompt that they are wanted of, int64 `[num_prompt_tokens]`."""
    prompt_offsets: Tensor
    """Which of its row's known tokens comes before it, int64 `[num_prompt_tokens]`."""
    num_candidates: int
    """How many of the likeliest tokens at each position are wanted."""

    def to(self, device: torch.device) -> "LogprobTargets":
        """Returns the same on a device; the host does not wait for it."""
        return replace(
            self,
            rows=send(self.rows, device),
            prompt_rows=send(self.prompt_rows, device),
            prompt_offsets=send(self.prompt_offsets, device),
        )

    def extend(self, batch: FlatBatch, tokens: Ragged) -> None:
        """Asks a pass for the logits before tokens of prompts too, after all others."""
        indices = tokens.starts[:-1][self.prompt_rows] + self.prompt_offsets
        # A row that does not run after all has no such token.
        indices = indices.clamp(max=tokens.size - 1)
        batch.logits_indices = torch.cat([batch.logits_indices, indices])


def score_tokens(logits: Tensor, token_ids: Tensor, num_candidates: int) -> Tensor:
    """Returns the log-probabilities of tokens, and the likeliest tokens at their positions.

    The logits are the model's at each position, `[n, vocab_size]`. Of equally likely candidates the
    one with the smaller id is first. Returns int32 `[n, 1 + 2 * width]`, width the smaller one of
    `num_candidates` and `vocab_size`: the bits of the token's log-probability, then the candidates,
    then the bits of theirs.
    """
    vocab_size = logits.shape[-1]
    width = min(num_candidates, vocab_size)
    at_once = max(1, _SCORES_AT_ONCE // vocab_size)
    scored = logits.new_empty((len(logits), 1 + 2 * width), dtype=torch.int32)
    for first in range(0, len(logits), at_once):
        part = slice(first, first + at_once)
        scores = logits[part].float()
        candidates = _find_likeliest(scores, width)
        wanted = torch.cat([token_ids[part, None], candidates], 1)
        logprobs = scores.log_softmax(-1).gather(1, wanted).view(torch.int32)
        scored[part] = torch.cat([logprobs[:, :1], candidates.int(), logprobs[:, 1:]], 1)
    return scored


def score_output(
    logits: Tensor,
    nodes: Ragged,
    verdict: Verdict,
    num_emitted: Tensor,
    targets: LogprobTargets,
    *,
    reads: bool,
) -> Tensor:
    """Scores the new tokens of the targets' rows; each has emitted `num_emitted`.

    The logits are after the nodes. With `reads` sizes may depend on data; then what does not count
    is not computed. Returns what `score_tokens` does, `[num_rows * (1 + K), ...]`, row after row;
    what does not count is meaningless.
    """
    rows, (_, width) = targets.rows, verdict.token_ids.shape
    offsets = torch.arange(width, device=rows.device)
    elements = offsets.expand(len(rows), -1)
    if verdict.path is not None:
        # After a node of a tree comes what its path goes on with.
        elements = torch.nn.functional.pad(1 + verdict.path[rows], (1, 0))
    indices = (nodes.starts[:-1][rows, None] + elements).flatten()
    token_ids = verdict.token_ids[rows].flatten()
    if not reads:
        # Of what does not count there may be no logits, and no token of the vocabulary.
        indices = indices.clamp(max=len(logits) - 1)
        token_ids = token_ids.clamp(0, logits.shape[-1] - 1)
        return score_tokens(logits[indices], token_ids, targets.num_candidates)
    counts = (offsets < num_emitted[rows, None]).flatten().nonzero()[:, 0]
    scored = score_tokens(logits[indices[counts]], token_ids[counts], targets.num_candidates)
    padded = scored.new_zeros((len(indices), scored.shape[1]))
    return padded.index_copy_(0, counts, scored)


def score_prompts(
    logits: Tensor, table: SlotTable, rows: FittedRows, targets: LogprobTargets
) -> Tensor:
    """Scores the targets' tokens of prompts, as `score_tokens`, by the logits before each."""
    positions = rows.starts[targets.prompt_rows] + targets.prompt_offsets + 1
    token_ids = table.read_tokens(rows.slots[targets.prompt_rows], positions)
    return score_tokens(logits, token_ids, targets.num_candidates)


def find_broken(scored: Tensor, targets: LogprobTargets, rows: FittedRows) -> Tensor:
    """Returns the rows whose prompts have a token without a likelihood, bool `[R]`."""
    is_nan = scored[:, 0].contiguous().view(torch.float32).isnan().float()
    number = is_nan.new_zeros(len(rows.slots)).index_add_(0, targets.prompt_rows, is_nan)
    return number > 0


def _find_likeliest(scores: Tensor, width: int) -> Tensor:
    """Returns the largest scores' tokens, the smaller of equal ones first, int64 `[n, width]`."""
    if not width:
        return scores.new_empty((len(scores), 0), dtype=torch.int64)
    # Bits of floats are in the order of the floats, but for the negative ones; -0 becomes 0.
    bits = (scores + 0.0).view(torch.int32).long()
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    last = scores.shape[-1] - 1
    keys = order * _HALF + torch.arange(last, -1, -1, device=scores.device)
    return last - keys.topk(width, dim=-1).values % _HALF


class WantedLogprobs(NamedTuple):
    """What one row of a step has to report."""

    row: int
    slot: int
    first_fed: int
    """Position of the first token that is fed."""
    num_prompt_tokens: int
    """Tokens of the prompt after that one that are reported."""
    num_prompt_candidates: int
    num_candidates: int | None
    """None if its new tokens are not reported."""


def find_wanted(rows: Sequence[PlannedRow], held: Sequence[HeldSlot]) -> list[WantedLogprobs]:
    """Returns what the rows of a step have to report, and notes what they are fed."""
    wanted: list[WantedLogprobs] = []
    for index, (row, slot) in enumerate(zip(rows, held, strict=True)):
        sampling = slot.sampling
        if not sampling.wants_logprobs:
            continue
        number, first = 0, slot.num_fed_tokens
        if sampling.num_prompt_logprobs is not None:
            end = min(first + row.num_known_tokens, slot.num_prompt_tokens - 1)
            number = max(0, end - first)
        slot.num_fed_tokens += row.num_known_tokens
        if number or sampling.num_logprobs is not None:
            width = sampling.num_prompt_logprobs or 0
            one = WantedLogprobs(index, row.slot, first, number, width, sampling.num_logprobs)
            wanted.append(one)
    return wanted


def find_targets(wanted: Sequence[WantedLogprobs]) -> LogprobTargets:
    """Returns the same as tensors on the host."""
    numbers = np.array([one.num_prompt_tokens for one in wanted])
    offsets = [np.arange(number) for number in numbers]
    return LogprobTargets(
        rows=torch.tensor([one.row for one in wanted if one.num_candidates is not None]).long(),
        prompt_rows=torch.from_numpy(np.repeat([one.row for one in wanted], numbers)),
        prompt_offsets=torch.from_numpy(np.concatenate(offsets)),
        num_candidates=max(
            max(one.num_candidates or 0, one.num_prompt_candidates if one.num_prompt_tokens else 0)
            for one in wanted
        ),
    )


def read_logprobs(
    wanted: Sequence[WantedLogprobs], scored: Int32Column, outputs: Outputs[Int32Column]
) -> list[RowLogprobs]:
    """Reads what a step reports of its rows, of whom `outputs` are.

    Of `scored`, see `score_tokens`, the new tokens come first, `[num_rows * (1 + K)]`, then the
    prompts'.
    """
    width = scored.shape[1] // 2
    num_prompt_tokens = sum(one.num_prompt_tokens for one in wanted)
    split = len(scored) - num_prompt_tokens
    num_reporting = sum(one.num_candidates is not None for one in wanted)
    per_row = split // num_reporting if num_reporting else 0
    first, prompt = 0, split
    found: list[RowLogprobs] = []
    for one in wanted:
        of_prompt = scored[prompt : prompt + one.num_prompt_tokens]
        prompt += one.num_prompt_tokens
        of_output = scored[:0]
        if one.num_candidates is not None:
            of_output = scored[first : first + int(outputs.num_emitted_tokens[one.row])]
            first += per_row
        num_candidates = min(one.num_candidates or 0, width)
        num_prompt_candidates = min(one.num_prompt_candidates, width)
        if len(of_prompt) or len(of_output):
            parts = zip(
                _split(of_prompt, num_prompt_candidates, width),
                _split(of_output, num_candidates, width),
                strict=True,
            )
            logprobs, candidates, of_candidates = (np.concatenate(pair) for pair in parts)
            row = RowLogprobs(
                one.slot,
                one.first_fed + 1,
                one.num_prompt_tokens,
                num_prompt_candidates,
                num_candidates,
                logprobs.view(np.float32),
                candidates,
                of_candidates.view(np.float32),
            )
            found.append(row)
    return found


def has_nan(row: RowLogprobs) -> bool:
    """Returns whether a token of a row has no likelihood."""
    return bool(np.isnan(row.logprobs).any())


def _split(scored: Int32Column, number: int, width: int) -> tuple[Int32Column, ...]:
    """Returns log-probabilities, candidates and theirs, of some positions, flattened; as bits."""
    columns = (slice(1), slice(1, 1 + number), slice(1 + width, 1 + width + number))
    return tuple(scored[:, chosen].reshape(-1) for chosen in columns)
