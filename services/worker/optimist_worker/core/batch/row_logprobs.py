"""Log-probabilities of the rows of a step, on the host: what is wanted, and what came of it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from optimist_common.columns import Float32Column, Int32Column
from optimist_worker.core.batch.held_slot import HeldSlot
from optimist_worker.core.batch.logprobs import LogprobPlaces
from optimist_worker.core.batch.outputs import Outputs
from optimist_worker.core.plan import PlannedRow, RowLogprobs


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
    """Returns what the rows of a step have to report, and notes what they are fed.

    Args:
        rows: As planned, `[num_rows]`.
        held: Their slots, `[num_rows]`.
    """
    wanted: list[WantedLogprobs] = []
    for index, (row, slot) in enumerate(zip(rows, held, strict=True)):
        if not slot.wants_logprobs:
            continue
        number, first = 0, slot.num_fed_tokens
        if slot.num_prompt_logprobs is not None:
            end = min(first + row.num_known_tokens, slot.num_prompt_tokens - 1)
            number = max(0, end - first)
        slot.num_fed_tokens += row.num_known_tokens
        if number or slot.num_logprobs is not None:
            width = slot.num_prompt_logprobs or 0
            one = WantedLogprobs(index, row.slot, first, number, width, slot.num_logprobs)
            wanted.append(one)
    return wanted


def place_wanted(wanted: Sequence[WantedLogprobs]) -> LogprobPlaces:
    """Returns the same as tensors on the host."""
    numbers = np.array([one.num_prompt_tokens for one in wanted])
    offsets = [np.arange(number) for number in numbers]
    return LogprobPlaces(
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
    """Reads what a step reports of its rows.

    Args:
        wanted: What they had to report.
        scored: See `logprobs.score_tokens`: of the new tokens, `[num_rows * (1 + K)]`, then of the
            prompts'.
        outputs: Of all rows of the step.
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
            found.append(
                RowLogprobs(
                    one.slot,
                    one.first_fed + 1,
                    one.num_prompt_tokens,
                    num_prompt_candidates,
                    num_candidates,
                    *_join(
                        _split(of_prompt, num_prompt_candidates, width),
                        _split(of_output, num_candidates, width),
                    ),
                )
            )
    return found


def has_nan(row: RowLogprobs) -> bool:
    """Returns whether a token of a row has no likelihood."""
    return bool(np.isnan(row.logprobs).any())


_Parts = tuple[Float32Column, Int32Column, Float32Column]


def _split(scored: Int32Column, number: int, width: int) -> _Parts:
    """Returns log-probabilities, candidates and theirs, of some places, flattened."""
    return (
        _floats(scored[:, :1]),
        scored[:, 1 : 1 + number].reshape(-1),
        _floats(scored[:, 1 + width : 1 + width + number]),
    )


def _join(first: _Parts, second: _Parts) -> _Parts:
    return (
        np.concatenate([first[0], second[0]]),
        np.concatenate([first[1], second[1]]),
        np.concatenate([first[2], second[2]]),
    )


def _floats(bits: npt.NDArray[np.int32]) -> Float32Column:
    return np.ascontiguousarray(bits).reshape(-1).view(np.float32)
