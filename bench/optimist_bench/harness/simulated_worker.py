"""A worker without a model: it keeps the contract of plans and results, and decides by chance."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimist.common.v1 import draft_source_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import Int32Column, from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.lookup import MOST_DRAFTS

_NEVER = -1


class PlanError(ValueError):
    """A plan that breaks the contract; the text says how."""


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """How the model is described, and how well its drafts fare."""

    vocab_size: int = 32_000
    max_model_len: int = 65_536
    block_size: int = 16
    num_blocks: int = 32_768
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    acceptance: float = 1.0
    """Chance that a token is the expected one, for each token of its own."""
    varies_drafts: bool = False
    """Whether a row verifies any number of its drafts, each as often, as if no more fitted."""
    seed: int = 0
    looks_up: bool = False
    """Whether it says that it looks drafts up where windows have none, as `TruthWorker` does."""

    def expected(self, positions: npt.NDArray[np.integer]) -> Int32Column:
        """Returns the expected tokens at positions of a sequence, the same for all requests."""
        return ((positions * 31 + 7) % self.vocab_size).astype(np.int32)

    def describe(self) -> worker_pb2.DescribeResponse:
        """Returns the description that a scheduler asks for; a pass costs the same at any width."""
        num_tokens = [1, self.max_num_batched_tokens]
        message = worker_pb2.DescribeResponse(
            model="simulated",
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            cost_num_tokens=to_bytes(num_tokens),
            cost_us=to_bytes([1000, 1000]),
        )
        if self.looks_up:
            message.drafter = draft_source_pb2.DRAFT_SOURCE_NGRAM
            message.max_drafter_tokens = message.max_drafter_depth = MOST_DRAFTS
        return message


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one run."""

    slots: Int32Column
    num_known_tokens: Int32Column
    num_draft_tokens: Int32Column


class SimulatedWorker:
    """The rows of one scheduler, as columns by slot.

    A window is taken to hold the expected tokens: it stops to be of use at the first token after
    its base that is another one.
    """

    def __init__(self, model: SimulatedModel) -> None:
        self._model = model
        self._random = np.random.default_rng(model.seed)
        self._taken = np.zeros(model.max_num_seqs, np.bool_)
        self._length = np.zeros(model.max_num_seqs, np.int64)
        self._computed = np.zeros(model.max_num_seqs, np.int64)
        self._num_prompt_tokens = np.zeros(model.max_num_seqs, np.int64)
        self._max_length = np.zeros(model.max_num_seqs, np.int64)
        self._num_blocks = np.zeros(model.max_num_seqs, np.int64)
        self._window_base = np.zeros(model.max_num_seqs, np.int64)
        self._window_end = np.zeros(model.max_num_seqs, np.int64)
        self._diverged_at = np.full(model.max_num_seqs, _NEVER, np.int64)
        """Position of the last token that was not the expected one."""
        self._sequence = 0

    def execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteResponse:
        """Applies a plan and runs its rows; raises PlanError."""
        self._release(from_bytes(request.released_slots))
        for admission in request.admissions:
            self._admit(admission)
        for window in request.windows:
            self._set_window(window)
        slots = from_bytes(request.slots)
        rows = _Rows(
            slots, from_bytes(request.num_known_tokens), from_bytes(request.num_draft_tokens)
        )
        num_new = from_bytes(request.num_new_blocks)
        if int(num_new.sum()) != len(from_bytes(request.new_blocks)):
            raise PlanError("new_blocks: not as many as num_new_blocks add to")
        if not self._taken[slots].all():
            raise PlanError("slots: one is free")
        self._num_blocks[slots] += num_new
        self._sequence = request.sequence
        return self._run(rows)

    def _release(self, slots: Int32Column) -> None:
        if not self._taken[slots].all():
            raise PlanError("released_slots: one is free")
        self._taken[slots] = False

    def _admit(self, admission: worker_pb2.Admission) -> None:
        slot = admission.slot
        if self._taken[slot]:
            raise PlanError(f"admissions.slot: {slot} is taken")
        num_cached = len(from_bytes(admission.cached_blocks))
        self._taken[slot] = True
        self._length[slot] = len(from_bytes(admission.token_ids))
        self._computed[slot] = min(num_cached * self._model.block_size, self._length[slot] - 1)
        self._num_prompt_tokens[slot] = admission.num_prompt_tokens
        self._max_length[slot] = admission.max_length or self._model.max_model_len
        self._num_blocks[slot] = num_cached
        self._window_base[slot] = self._window_end[slot] = 0
        self._diverged_at[slot] = _NEVER

    def _set_window(self, window: worker_pb2.Window) -> None:
        base = int(self._num_prompt_tokens[window.slot]) + window.base
        self._window_base[window.slot] = base
        self._window_end[window.slot] = base + len(from_bytes(window.token_ids))

    def _run(self, rows: _Rows) -> worker_pb2.ExecuteResponse:
        slots, length = rows.slots, self._length[rows.slots]
        going = length < self._max_length[slots]
        known = np.where(going, rows.num_known_tokens, 0)
        reached = self._computed[slots] + known
        if (reached > length).any():
            raise PlanError("num_known_tokens: more than there are")
        emits = going & (reached == length)
        drafted = np.where(emits, self._find_drafts(rows, length), 0)
        if self._model.varies_drafts:
            drafted = self._random.integers(drafted + 1)
        if (reached + drafted > self._num_blocks[slots] * self._model.block_size).any():
            raise PlanError("new_blocks: too few for the drafts")
        accepted, is_expected = self._decide(drafted)
        accepted = np.where(emits, accepted, 0)
        emitted = np.where(emits, 1 + accepted, 0)
        self._computed[slots] = reached + accepted
        self._length[slots] = length + emitted
        # The node of the last token, and the accepted ones after it.
        nodes = length - 1 - self._window_base[slots]
        first = np.repeat(nodes + 1 - np.cumsum(accepted) + accepted, accepted)
        diverged = emits & ~is_expected
        self._diverged_at[slots[diverged]] = self._length[slots[diverged]] - 1
        return worker_pb2.ExecuteResponse(
            sequence=self._sequence,
            slots=to_bytes(slots),
            lengths=to_bytes(self._length[slots]),
            num_emitted_tokens=to_bytes(emitted),
            token_ids=to_bytes(self._tokens(length, emitted, diverged)),
            num_drafted_tokens=to_bytes(drafted),
            num_accepted_tokens=to_bytes(accepted),
            draft_sources=to_bytes((drafted > 0) * int(DraftSource.PREDICTION)),
            window_nodes=to_bytes(nodes),
            accepted_nodes=to_bytes(first + np.arange(len(first))),
            num_tokens=int(known.sum() + drafted.sum()),
        )

    def _find_drafts(self, rows: _Rows, length: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns how many drafts each row has from its window."""
        slots = rows.slots
        base = self._window_base[slots]
        agrees = (base <= length) & (self._diverged_at[slots] < base)
        left = np.where(agrees, self._window_end[slots] - length, 0)
        room = self._max_length[slots] - length - 1
        drafts: npt.NDArray[np.int64] = np.clip(np.minimum(left, room), 0, rows.num_draft_tokens)
        return drafts

    def _decide(
        self, drafted: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Returns the accepted drafts per row, and whether its last token is the expected one."""
        if self._model.acceptance == 1.0:
            return drafted, np.ones(len(drafted), np.bool_)
        run = self._random.geometric(1.0 - self._model.acceptance, len(drafted)) - 1
        accepted = np.minimum(run, drafted)
        return accepted, run > accepted

    def _tokens(
        self,
        length: npt.NDArray[np.int64],
        emitted: npt.NDArray[np.int64],
        diverged: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.int64]:
        """Returns the new tokens of all rows; the last one of a diverged row is another one."""
        starts = np.cumsum(emitted) - emitted
        index = np.arange(int(emitted.sum()))
        positions = index + np.repeat(length - starts, emitted)
        tokens = self._model.expected(positions).astype(np.int64)
        last = (starts + emitted - 1)[diverged]
        tokens[last] = (tokens[last] + 1) % self._model.vocab_size
        return tokens
