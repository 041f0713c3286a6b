"""A verify pass: what it has computed, how it is judged, and what came of its drafts."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from optimist_worker.core.acceptance.sampling_table import Needs, SamplingTable
from optimist_worker.core.drafts import Drafts, Ragged, holds_from_top, nodes_by_depth
from optimist_worker.core.operation import Operation


class AcceptanceRule(StrEnum):
    """Which tokens a pass emits, given its logits and drafts."""

    COUPLED = "coupled"
    """The token that would be sampled anyway; the text for a seed does not depend on drafts."""
    REJECTION = "rejection"
    """With probability p/q, else a token of what is left of p; only the distribution stays."""


class RowFailure(IntEnum):
    """Why a row emits nothing where it should."""

    NONE = 0
    NOT_FINITE = 1
    """Not all of its logits are numbers."""
    STUCK = 2
    """No token may come after its last known one."""


@dataclass(slots=True)
class VerifyPass:
    """The logits of R rows at each of their drafts, N in all, with what padding there is."""

    logits: Tensor
    """The target's, `[N, vocab_size]`."""
    nodes: Ragged
    """Which node of which row each row of logits is after: element 0 of a row is after its last
    known token, element 1 + i after its draft i. Rows that emit nothing have no elements."""
    positions: Tensor
    """Position of the token after each node, int64 `[N]`."""
    node_slots: Tensor
    """Slot of each node's row, int64 `[N]`."""
    drafts: Drafts
    """None for rows that emit nothing."""
    slots: Tensor
    """Int64 `[R]`."""
    num_tokens: Tensor
    """Known tokens of each row, prompt and verified output, int64 `[R]`."""
    num_prompt_tokens: Tensor
    """Int64 `[R]`."""
    token_ids: Tensor
    """Tokens of all slots, `[S + 1, L]`; read only if penalties are needed."""
    sampling: SamplingTable
    needs: Needs
    """What the rows need at least."""
    allowed: Tensor | None = None
    """Tokens that may come after each node, bool `[N, vocab_size]`; None: all."""
    late_tokens: "LateTokens | None" = None
    """None: no row has any."""

    def by_row(self, values: Tensor) -> Tensor:
        """Arranges values of the flat rows by row and node, `[N]` to `[R, 1 + K]`.

        What a row does not have is 0.
        """
        return _by_row(values, self.nodes, self.drafts)


class LateTokens(NamedTuple):
    """Tokens that may not be chosen before some position, of R rows."""

    token_ids: Tensor
    """Of each row, some of them several times, int64 `[R, M]`."""
    min_length: Tensor
    """The first position at which they may be chosen, int64 `[R]`."""


@dataclass(slots=True)
class Verdict:
    """The tokens of R rows: accepted drafts, and after them one token of the target."""

    token_ids: Tensor
    """Int64 `[R, 1 + K]`; the first `num_accepted + 1` count, if the row emits and is sound."""
    num_accepted: Tensor
    """Int64 `[R]`; 0 where the row is not sound."""
    path: Tensor | None
    """Accepted nodes from the top down, int64 `[R, K]`, after the last 0; None for chains."""
    is_sound: Tensor
    """Whether nothing keeps each row from emitting, bool `[R]`."""
    is_stuck: Tensor | None = None
    """Whether that is because no token may come after its last known one, bool `[R]`; None: of no
    row. Else not all of its logits are numbers."""

    def failures(self) -> Tensor:
        """Returns what keeps each row from emitting, a `RowFailure`, `[R]`."""
        failures = ~self.is_sound
        return failures if self.is_stuck is None else failures.int() + self.is_stuck


def _by_row(values: Tensor, nodes: Ragged, drafts: Drafts) -> Tensor:
    width = 1 + drafts.width
    if nodes.is_exact and len(values) == drafts.num_rows * width:
        return values.view(-1, width)
    elements = torch.arange(width, device=values.device)
    indices = nodes.starts[:-1, None] + elements
    is_real = indices < nodes.starts[1:, None]
    # The value after the last one takes the position of all that is missing.
    padded = torch.nn.functional.pad(values, (0, 1))
    return padded[torch.where(is_real, indices, len(values))]


def find_sound(
    largest: Tensor, left: Tensor | None, nodes: Ragged, drafts: Drafts
) -> tuple[Tensor, Tensor | None]:
    """Returns which rows are sound, `[R]`, and after which nodes any token may come, `[R, 1 + K]`.

    See `reach_verdict`; None: after all.
    """
    is_finite = ~_by_row(~largest.isfinite(), nodes, drafts).any(1)
    if left is None:
        return is_finite, None
    is_open = ~_by_row(left == -torch.inf, nodes, drafts) | ~is_finite[:, None]
    return is_finite & is_open[:, 0], is_open


def reach_verdict(
    choices: Tensor, largest: Tensor, left: Tensor | None, nodes: Ragged, drafts: Drafts
) -> Verdict:
    """Accepts drafts that were chosen, and follows them as far as they go; see `Verdict`.

    Choices are the tokens after each node, int64 `[N]`, `largest` the largest logits there, and
    `left` those of tokens that may be chosen, `[N]`; None: all may.

    Where nothing is left, a draft is not accepted: so its row comes without it, and then nothing is
    left after the last known token.
    """
    is_sound, is_open = find_sound(largest, left, nodes, drafts)
    chosen = _by_row(choices, nodes, drafts)
    # A chain's first node has the first choice before it, and so on.
    before = chosen[:, :-1] if drafts.parents is None else chosen.gather(1, drafts.parents + 1)
    is_accepted, is_stuck = drafts.token_ids == before, None
    if is_open is not None:
        is_accepted, is_stuck = is_accepted & is_open[:, 1:], ~is_open[:, 0]
    return _follow(drafts, is_accepted, chosen, is_sound, is_stuck)


REACH_VERDICT = Operation(
    "verdict", reach_verdict, "optimist_worker.core.acceptance.verdict_kernel:reach_verdict"
)


def _follow(
    drafts: Drafts,
    is_accepted: Tensor,
    choices: Tensor,
    is_sound: Tensor,
    is_stuck: Tensor | None,
) -> Verdict:
    if not drafts.width:
        return Verdict(choices, torch.zeros_like(drafts.num_tokens), None, is_sound, is_stuck)
    is_accepted = is_accepted & drafts.is_node & is_sound[:, None]
    accepted = holds_from_top(is_accepted, drafts.parents)
    num_accepted = accepted.sum(1)
    token_ids, path = drafts.token_ids, None
    last = num_accepted
    if drafts.parents is not None:
        path = nodes_by_depth(accepted, drafts.depths)
        token_ids = token_ids.gather(1, path)
        last_node = path.gather(1, (num_accepted - 1).clamp(min=0)[:, None])[:, 0]
        last = torch.where(num_accepted > 0, 1 + last_node, 0)
    token_ids = torch.nn.functional.pad(token_ids, (0, 1))
    indices = torch.arange(1 + drafts.width, device=token_ids.device)
    token_ids = torch.where(indices < num_accepted[:, None], token_ids, 0)
    bonus = choices.gather(1, last[:, None])
    return Verdict(
        token_ids.scatter_(1, num_accepted[:, None], bonus), num_accepted, path, is_sound, is_stuck
    )


def nothing(drafts: Drafts) -> Verdict:
    """Returns the verdict on a pass that did not take place."""
    zeros = torch.zeros_like(drafts.num_tokens)
    is_sound = torch.ones_like(zeros).bool()
    return Verdict(torch.nn.functional.pad(drafts.token_ids, (0, 1)), zeros, None, is_sound)
