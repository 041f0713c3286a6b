"""A worker whose model says given texts: it drafts from windows, trees too, as a real one does."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress, takewhile

import numpy as np

from optimist.worker.v1 import worker_pb2
from optimist_bench.harness.simulated_worker import PlanError
from optimist_common.columns import Int32Column, from_bytes, to_bytes
from optimist_common.drafts import PREDICTION, ROOT, DraftSource, TokenTree
from optimist_common.lookup import LONGEST_MATCH, MATCH_AT_START, REACH, Doubts

_NOWHERE = np.empty(0, np.int64)
_ALONE = np.zeros(1, np.int64)
"""The slot of a row that has `Doubts` of its own."""


class _Prediction:
    """Looks up where an output goes on, by the rule of the worker's `NgramDrafter`."""

    def __init__(self, token_ids: Int32Column, cursor: int) -> None:
        """Takes the predictions and where in them the output goes on, as far as is known."""
        self.token_ids, self.cursor = token_ids, cursor

    def find(self, last: Sequence[int]) -> tuple[int, int]:
        """Returns where the last tokens of an output go on, and how many of them are there."""
        token_ids, cursor = self.token_ids, self.cursor
        first, num_matched = max(cursor - REACH, 1), 0
        ends = token_ids[first - 1 : cursor + REACH - 1]
        found = np.flatnonzero(ends == last[-1]) + first if last else _NOWHERE
        while len(found):
            best, num_matched = found, num_matched + 1
            if num_matched == len(last):
                break
            found = found[found > num_matched]
            found = found[token_ids[found - 1 - num_matched] == last[-1 - num_matched]]
        if num_matched:
            self.cursor = int(best[np.abs(best - cursor).argmin()])
        return self.cursor, num_matched


@dataclass(slots=True)
class Row:
    """A request, what its model says, and what is known to draft from."""

    truth: Sequence[int]
    """All that the model says."""
    prediction: _Prediction
    num_prompt_tokens: int
    max_length: int
    length: int
    num_computed: int
    is_followed: bool = False
    """Whether the output so far is a path of the window."""
    node: int = ROOT
    """Last node that the output has passed."""
    tree: TokenTree = field(default_factory=lambda: TokenTree(np.empty(0, np.int32)))
    doubts: Doubts = field(default_factory=lambda: Doubts(1))

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return self.length - self.num_prompt_tokens

    def set_window(self, window: worker_pb2.Window) -> None:
        """Replaces the window."""
        self.tree = TokenTree.from_columns(from_bytes(window.token_ids), from_bytes(window.parents))
        self.node, self.is_followed = ROOT, window.base <= self.num_output
        self.follow(self.truth[window.base : self.num_output])

    def follow(self, token_ids: Sequence[int]) -> None:
        """Moves on in the window."""
        if self.is_followed and token_ids:
            path = self.tree.walk(token_ids, self.node)
            self.is_followed = len(path) == len(token_ids)
            self.node = path[-1] if path else self.node

    def find_drafts(self, most: int) -> tuple[int, list[int]]:
        """Returns how many of the first `most` nodes there are, and those that come true."""
        if not self.is_followed or most <= 0:
            return 0, []
        drafted = self.tree.find_subtree(self.node)[:most].tolist()
        path = self.tree.walk(self.truth[self.num_output : self.num_output + most], self.node)
        return len(drafted), [node for node in path if node in drafted]

    def look_up(self, most: int, least_chance: float) -> tuple[int, int, int]:
        """Returns where in the prediction drafts begin, how many, and how many come true."""
        last = self.truth[max(self.num_output - LONGEST_MATCH, 0) : self.num_output]
        start, num_matched = self.prediction.find(last)
        matched = _ALONE + (num_matched if last else MATCH_AT_START)
        most = min(most, int(self.doubts.count_likely(_ALONE, matched, least_chance)[0]))
        drafts = self.prediction.token_ids[start : start + most].tolist()
        truth = self.truth[self.num_output : self.num_output + len(drafts)]
        num_right = _count_common(drafts, truth)
        if drafts:
            self.doubts.observe(_ALONE, _ALONE + len(drafts), _ALONE + num_right)
        return start, len(drafts), num_right


def _count_common(some: Sequence[int], others: Sequence[int]) -> int:
    """Returns how many first elements are the same."""
    pairs = zip(some, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class TruthWorker:
    """The rows of one scheduler. A request's seed, modulo their number, says which text is said."""

    def __init__(self, truths: Sequence[Sequence[int]], model: worker_pb2.DescribeResponse) -> None:
        """Takes the texts as token ids, and what the worker says of itself."""
        self._truths, self._model = truths, model
        self._rows: dict[int, Row] = {}

    def execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteResponse:
        """Applies a plan and runs its rows; raises PlanError."""
        for slot in from_bytes(request.released_slots).tolist():
            if self._rows.pop(slot, None) is None:
                raise PlanError(f"released_slots: {slot} is free")
        for admission in request.admissions:
            self._admit(admission)
        for window in request.windows:
            self._row(window.slot).set_window(window)
        columns = request.slots, request.num_known_tokens, request.num_draft_tokens
        plan = zip(*(from_bytes(column).tolist() for column in columns), strict=True)
        emitted: list[list[int]] = []
        drafted: list[int] = []
        nodes: list[int] = []
        accepted: list[list[int]] = []
        lengths: list[int] = []
        positions: list[int] = []
        num_fed = 0
        for slot, num_known, num_drafts in plan:
            row = self._row(slot)
            nodes.append(row.node)
            new, num_drafted, kept, position = self._run(
                row, num_known, num_drafts, request.least_chance
            )
            positions.append(position)
            emitted.append(new)
            drafted.append(num_drafted)
            accepted.append(kept)
            lengths.append(row.length)
            num_fed += num_known + num_drafted
        is_window = [position < 0 for position in positions]
        sources = [
            (PREDICTION if of_window else DraftSource.NGRAM) * (count > 0)
            for of_window, count in zip(is_window, drafted, strict=True)
        ]
        return worker_pb2.ExecuteResponse(
            sequence=request.sequence,
            slots=request.slots,
            lengths=to_bytes(lengths),
            num_emitted_tokens=to_bytes([len(new) for new in emitted]),
            token_ids=to_bytes([token_id for new in emitted for token_id in new]),
            num_drafted_tokens=to_bytes(drafted),
            num_accepted_tokens=to_bytes([len(kept) for kept in accepted]),
            draft_sources=to_bytes(sources),
            window_nodes=to_bytes(nodes),
            accepted_nodes=to_bytes(
                [node for kept in compress(accepted, is_window) for node in kept]
            ),
            num_tokens=num_fed,
            draft_positions=to_bytes(positions),
        )

    def _row(self, slot: int) -> Row:
        row = self._rows.get(slot)
        if row is None:
            raise PlanError(f"slots: {slot} is free")
        return row

    def _admit(self, admission: worker_pb2.Admission) -> None:
        if admission.slot in self._rows:
            raise PlanError(f"admissions.slot: {admission.slot} is taken")
        token_ids = from_bytes(admission.token_ids)
        num_computed = len(from_bytes(admission.cached_blocks)) * self._model.block_size
        self._rows[admission.slot] = Row(
            self._truths[admission.sampling.seed % len(self._truths)],
            _Prediction(
                from_bytes(admission.predicted_token_ids),
                len(token_ids) - admission.num_prompt_tokens,
            ),
            admission.num_prompt_tokens,
            admission.max_length,
            len(token_ids),
            num_computed,
        )

    def _run(
        self, row: Row, num_known: int, num_drafts: int, least_chance: float
    ) -> tuple[list[int], int, list[int], int]:
        """Runs a row.

        Returns:
            Its new tokens, how many drafts were verified, the accepted nodes of its window or as
            many others, and where in the prediction they were looked up, -1 for nowhere.
        """
        left = min(row.max_length - row.length, len(row.truth) - row.num_output)
        if left <= 0:
            return [], 0, [], -1
        row.num_computed += num_known
        if row.num_computed > row.length:
            raise PlanError("num_known_tokens: more than there are")
        if row.num_computed < row.length:
            return [], 0, [], -1
        most, position = min(num_drafts, left - 1), -1
        num_drafted, accepted = row.find_drafts(most)
        if not num_drafted and most > 0 and self._model.drafter:
            most = min(most, self._model.max_drafter_tokens)
            start, num_drafted, num_accepted = row.look_up(most, least_chance)
            position, accepted = start if num_drafted else -1, [ROOT] * num_accepted
        new = list(row.truth[row.num_output : row.num_output + len(accepted) + 1])
        row.follow(new)
        row.prediction.cursor += len(new)
        row.length += len(new)
        row.num_computed += len(accepted)
        return new, num_drafted, accepted, position
