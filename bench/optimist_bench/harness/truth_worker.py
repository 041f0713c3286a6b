"""A worker whose model says given texts: it drafts from windows, trees too, as a real one does."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from optimist.worker.v1 import worker_pb2
from optimist_bench.harness.simulated_worker import PlanError
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.draft_source import DraftSource


@dataclass(slots=True)
class _Row:
    truth: Sequence[int]
    """All that the model says."""
    num_prompt_tokens: int
    max_length: int
    length: int
    num_computed: int
    is_followed: bool = False
    """Whether the output so far is a path of the window."""
    node: int = -1
    """Last node that the output has passed; -1 for none."""
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    @property
    def num_output(self) -> int:
        return self.length - self.num_prompt_tokens

    def set_window(self, window: worker_pb2.Window) -> None:
        self.tokens = from_bytes(window.token_ids).tolist()
        self.parents = from_bytes(window.parents).tolist() or list(range(-1, len(self.tokens) - 1))
        self.node, self.is_followed = -1, window.base <= self.num_output
        self.follow(self.truth[window.base : self.num_output])

    def follow(self, token_ids: Sequence[int]) -> None:
        """Moves on in the window."""
        for token_id in token_ids:
            if not self.is_followed:
                return
            node = self.find_child(token_id)
            self.is_followed, self.node = node is not None, -1 if node is None else node

    def find_child(self, token_id: int) -> int | None:
        """Returns the node with a token after the present one; None if there is none."""
        for node in range(self.node + 1, len(self.tokens)):
            if self.parents[node] == self.node and self.tokens[node] == token_id:
                return node
        return None

    def count_accepted(self, most: int) -> tuple[int, int]:
        """Returns how many of the first `most` nodes there are, and how many come true."""
        if not self.is_followed or most <= 0:
            return 0, 0
        subtree, drafted = {self.node}, set[int]()
        for node in range(self.node + 1, len(self.tokens)):
            if self.parents[node] in subtree:
                subtree.add(node)
                drafted.add(node)
                if len(drafted) == most:
                    break
        start, num_accepted = self.node, 0
        for token_id in self.truth[self.num_output :]:
            child = self.find_child(token_id)
            if child is None or child not in drafted:
                break
            self.node, num_accepted = child, num_accepted + 1
        self.node = start
        return len(drafted), num_accepted


class TruthWorker:
    """The rows of one scheduler. Of several texts, a prompt's first token says which is said."""

    def __init__(
        self,
        truths: Sequence[Sequence[int]],
        model: worker_pb2.DescribeResponse,
        *,
        by_seed: bool = False,
    ) -> None:
        """Takes the texts as tokens, and the description that goes with them.

        Args:
            truths: Texts, each of token ids.
            model: What the worker says of itself.
            by_seed: Whether a request's seed, modulo their number, says which text is said.
        """
        self._truths, self._model, self._by_seed = truths, model, by_seed
        self._rows: dict[int, _Row] = {}

    @property
    def can_repeat(self) -> bool:
        """Plans are run once."""
        return False

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
        drafts: list[tuple[int, int]] = []
        lengths: list[int] = []
        num_fed = 0
        for slot, num_known, num_drafts in plan:
            row = self._row(slot)
            new, counts = self._run(row, num_known, num_drafts)
            emitted.append(new)
            drafts.append(counts)
            lengths.append(row.length)
            num_fed += num_known + counts[0]
        drafted = [count for count, _ in drafts]
        return worker_pb2.ExecuteResponse(
            sequence=request.sequence,
            slots=request.slots,
            lengths=to_bytes(lengths),
            num_emitted_tokens=to_bytes([len(new) for new in emitted]),
            token_ids=to_bytes([token_id for new in emitted for token_id in new]),
            num_drafted_tokens=to_bytes(drafted),
            num_accepted_tokens=to_bytes([count for _, count in drafts]),
            draft_sources=to_bytes([DraftSource.PREDICTION * (count > 0) for count in drafted]),
            num_tokens=num_fed,
        )

    def repeat(self) -> worker_pb2.ExecuteResponse:
        """Raises PlanError: plans are run once."""
        raise PlanError("num_repeats: must be 0")

    def _row(self, slot: int) -> _Row:
        row = self._rows.get(slot)
        if row is None:
            raise PlanError(f"slots: {slot} is free")
        return row

    def _admit(self, admission: worker_pb2.Admission) -> None:
        if admission.slot in self._rows:
            raise PlanError(f"admissions.slot: {admission.slot} is taken")
        token_ids = from_bytes(admission.token_ids)
        number = int(token_ids[0]) if len(self._truths) > 1 else 0
        if self._by_seed:
            number = admission.sampling.seed % len(self._truths)
        if number >= len(self._truths):
            raise PlanError(f"admissions.token_ids: there is no text {number}")
        num_computed = len(from_bytes(admission.cached_blocks)) * self._model.block_size
        self._rows[admission.slot] = _Row(
            self._truths[number],
            admission.num_prompt_tokens,
            admission.max_length,
            len(token_ids),
            num_computed,
        )

    def _run(self, row: _Row, num_known: int, num_drafts: int) -> tuple[list[int], tuple[int, int]]:
        """Returns the new tokens of a row, and how many drafts were verified and accepted."""
        left = min(row.max_length - row.length, len(row.truth) - row.num_output)
        if left <= 0:
            return [], (0, 0)
        row.num_computed += num_known
        if row.num_computed > row.length:
            raise PlanError("num_known_tokens: more than there are")
        if row.num_computed < row.length:
            return [], (0, 0)
        num_drafted, num_accepted = row.count_accepted(min(num_drafts, left - 1))
        new = list(row.truth[row.num_output : row.num_output + num_accepted + 1])
        row.follow(new)
        row.length += len(new)
        row.num_computed += num_accepted
        return new, (num_drafted, num_accepted)
