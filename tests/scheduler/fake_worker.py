"""A worker without a model: its next token is a hash of the sequence, its KV the prefix's hash."""

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import floats_to_bytes, from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import read_sampling
from optimist_scheduler.core.width.acceptance import Drafter

SIZES: dict[str, Any] = {"vocab_size": 50, "max_model_len": 64, "block_size": 4, "num_blocks": 32}
SIZES |= {"max_num_seqs": 4, "max_num_batched_tokens": 16}
COLUMNS: tuple[str, ...] = ("lengths", "num_emitted_tokens", "token_ids", "num_drafted_tokens")
COLUMNS += ("num_accepted_tokens", "draft_sources", "window_nodes", "accepted_nodes")
COLUMNS += ("draft_positions", "num_form_drafted_tokens", "num_form_accepted_tokens")
"""Of a result, besides its slots."""


def prefix_hash(token_ids: Sequence[int], of_prefix: int = 0) -> int:
    """Returns the hash of a prefix and what comes after it."""
    return zlib.crc32(np.array(token_ids, np.int32).tobytes(), of_prefix)


def next_token(token_ids: list[int], vocab_size: int) -> int:
    return prefix_hash(token_ids) % vocab_size


def logprob_of(token_ids: list[int]) -> float:
    """Returns how likely the last token is behind the others; exact in float32."""
    return -(prefix_hash([*token_ids, -2]) % 997) / 16


def candidates_of(
    token_ids: list[int], number: int, vocab_size: int
) -> tuple[list[int], list[float]]:
    """Returns the likeliest tokens in the place of the last token, and how likely they are."""
    first = prefix_hash(token_ids[:-1])
    logprobs = [-(first % 16) / 16 - place for place in range(number)]
    return [(first + place) % vocab_size for place in range(number)], logprobs


def expected_output(
    prompt: Sequence[int], vocab_size: int, max_length: int, stops: set[int], min_tokens: int = 0
) -> list[int]:
    """Returns what the model says alone, cut at a stop token or the length limit."""
    output, known = list[int](), prefix_hash(prompt)
    while len(prompt) + len(output) < max_length:
        output.append(known % vocab_size)
        known = prefix_hash(output[-1:], known)
        if output[-1] in stops and len(output) >= min_tokens:
            break
    return output


@dataclass
class Row:
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    max_length: int
    min_length: int
    stops: set[int]
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    window_base: int = 0
    window: list[tuple[int, ...]] = field(default_factory=list)
    """Nodes of its window, each as the path of tokens that leads to it from its base on."""
    ended: bool = False
    """Whether it said a stop token or is as long as it may be: it emits nothing any more."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    num_predicted: int = 0
    """Tokens of its predictions."""
    _hashes: list[int] = field(default_factory=list)
    """Of its tokens up to each."""

    def hashes(self, length: int) -> list[int]:
        """Returns the hashes of its tokens up to each of the first ones."""
        for token_id in self.token_ids[len(self._hashes) : length]:
            self._hashes.append(prefix_hash([token_id], self._hashes[-1] if self._hashes else 0))
        return self._hashes[:length]

    def report(
        self, slot: int, vocab_size: int, num_computed: int, num_emitted: int
    ) -> worker_pb2.RowLogprobs | None:
        """Returns what a step reports of how likely tokens are.

        Args:
            slot: Where the row is.
            vocab_size: Token ids are below.
            num_computed: Tokens that were computed before it.
            num_emitted: Tokens that it brought, which the row has.
        """
        of_prompt, of_output = self.sampling.num_prompt_logprobs, self.sampling.num_logprobs
        end, length = min(self.num_computed, self.num_prompt_tokens - 1) + 1, len(self.token_ids)
        widths = dict.fromkeys(range(num_computed + 1, end), of_prompt)
        num_prompt_tokens = len(widths) if of_prompt is not None else 0
        widths |= dict.fromkeys(range(length - num_emitted, length), of_output)
        message = worker_pb2.RowLogprobs(
            slot=slot,
            first_prompt_position=num_computed + 1,
            num_prompt_tokens=num_prompt_tokens,
            num_prompt_candidates=of_prompt or 0,
            num_candidates=of_output or 0,
        )
        for place, width in widths.items():
            if width is not None:
                sequence = self.token_ids[: place + 1]
                ids, logprobs = candidates_of(sequence, width, vocab_size)
                message.logprobs += floats_to_bytes([logprob_of(sequence)])
                message.candidate_token_ids += to_bytes(ids)
                message.candidate_logprobs += floats_to_bytes(logprobs)
        return message if message.logprobs else None

    @property
    def since(self) -> tuple[int, ...]:
        """Output since the window's base."""
        return tuple(self.token_ids[self.num_prompt_tokens + self.window_base :])

    def nodes(self) -> list[tuple[int, ...]]:
        """Returns the window's nodes after the output, each as the path from there."""
        if len(self.token_ids) < self.num_prompt_tokens + self.window_base:
            return []
        size = len(self.since)
        return [
            path[size:] for path in self.window if path[:size] == self.since and len(path) > size
        ]

    def find_nodes(self, accepted: list[int]) -> list[int]:
        """Returns the node that the row is at, and those of the next tokens."""
        paths = [*self.window, ()]
        ends = range(len(accepted) + 1)
        nodes = [paths.index(self.since + tuple(accepted[:end])) for end in ends]
        return [-1 if node == len(self.window) else node for node in nodes]

    def extend(self, token_ids: list[int]) -> None:
        for token_id in token_ids:
            self.token_ids.append(token_id)
            if token_id in self.stops and len(self.token_ids) >= self.min_length:
                self.ended = True
        if len(self.token_ids) >= self.max_length:
            self.ended = True


class FakeWorker:
    """Keeps the rules of the contract and raises AssertionError where a plan breaks one.

    Several plans in flight are a matter of the caller: `execute` is called when a plan runs.
    """

    def __init__(
        self,
        eos_token_ids: tuple[int, ...] = (),
        costs: tuple[tuple[int, int], ...] = (),
        drafter: Drafter | None = None,
        **sizes: int,
    ) -> None:
        self.description = worker_pb2.DescribeResponse(
            model="fake",
            eos_token_ids=to_bytes(eos_token_ids),
            cost_num_tokens=to_bytes([num_tokens for num_tokens, _ in costs]),
            cost_us=to_bytes([microseconds for _, microseconds in costs]),
            **{**SIZES, **sizes},
        )
        self._drafter = drafter
        if drafter is not None:
            self.description.drafter = drafter.source.value  # type: ignore[assignment]
            self.description.max_drafter_tokens = drafter.max_tokens
            self.description.max_drafter_depth = drafter.max_depth
        self.drafted: list[tuple[str, tuple[int, ...], list[tuple[int, ...]], int]] = []
        """Request, its output and the nodes behind of each look at a window or at a prediction, and
        the position there, -1 of a window."""
        self.admitted: list[str] = []
        self.failing: set[str] = set()
        self.num_steps = 0
        """Plans that were run."""
        self.num_cached_tokens = 0
        """Tokens that were not computed because cached blocks held them."""
        self.is_silent = False
        """Whether it reports no log-probabilities."""
        self.restart()

    def restart(self) -> None:
        self.rows: dict[int, Row] = {}
        sizes = self.description.num_blocks, self.description.block_size
        self._kv = [[-1] * sizes[1] for _ in range(sizes[0])]
        self._sequence = 0

    def execute(self, plan: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteResponse:
        """Runs a plan."""
        assert plan.sequence > self._sequence
        self._sequence = plan.sequence
        for slot in from_bytes(plan.released_slots).tolist():
            del self.rows[slot]
        for admission in plan.admissions:
            self._admit(admission)
        for window in plan.windows:
            row = self.rows[window.slot]
            tokens = from_bytes(window.token_ids).tolist()
            parents = from_bytes(window.parents).tolist() or range(-1, len(tokens) - 1)
            paths: list[tuple[int, ...]] = []
            for token, parent in zip(tokens, parents, strict=True):
                assert parent < len(paths)
                paths.append((*(paths[parent] if parent >= 0 else ()), token))
            assert len(set(paths)) == len(paths)
            row.window_base, row.window = window.base, paths
        self._append_blocks(plan)
        return self._run_rows(plan)

    def _admit(self, admission: worker_pb2.Admission) -> None:
        assert admission.slot not in self.rows
        assert 0 <= admission.slot < self.description.max_num_seqs
        self.admitted.append(admission.request_id)
        tokens = from_bytes(admission.token_ids).tolist()
        cached = from_bytes(admission.cached_blocks).tolist()
        row = Row(
            admission.request_id,
            tokens,
            admission.num_prompt_tokens,
            admission.max_length or self.description.max_model_len,
            admission.min_length,
            set(from_bytes(admission.stop_token_ids).tolist()),
            len(cached) * self.description.block_size,
            cached,
        )
        row.sampling = read_sampling(admission.sampling)
        row.num_predicted = len(from_bytes(admission.predicted_token_ids))
        assert 0 < row.num_prompt_tokens <= len(tokens) < row.max_length
        assert row.max_length <= self.description.max_model_len
        # The last token at least is computed, for its logits.
        assert row.num_computed < len(tokens)
        assert self._kv_of(row, row.num_computed) == row.hashes(row.num_computed)
        self.num_cached_tokens += row.num_computed
        self.rows[admission.slot] = row

    def _append_blocks(self, plan: worker_pb2.ExecuteRequest) -> None:
        """Gives the rows their new blocks; each is nobody else's, unless cached and computed."""
        slots = from_bytes(plan.slots).tolist()
        assert len(set(slots)) == len(slots) > 0
        held = {block for row in self.rows.values() for block in row.blocks}
        blocks = iter(from_bytes(plan.new_blocks).tolist())
        for slot, count in zip(slots, from_bytes(plan.num_new_blocks).tolist(), strict=True):
            new = [next(blocks) for _ in range(count)]
            assert not held.intersection(new)
            held.update(new)
            self.rows[slot].blocks += new
        assert next(blocks, None) is None
        assert all(0 <= block < self.description.num_blocks for block in held)
        holders = self._holders()
        for row in self.rows.values():
            assert len(set(row.blocks)) == len(row.blocks)
            for index, block in enumerate(row.blocks):
                is_computed = (index + 1) * self.description.block_size <= row.num_computed
                assert holders[block] == 1 or is_computed

    def _holders(self) -> Counter[int]:
        return Counter(block for row in self.rows.values() for block in row.blocks)

    def _run_rows(self, plan: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteResponse:
        self.num_steps += 1
        slots, known = from_bytes(plan.slots).tolist(), from_bytes(plan.num_known_tokens).tolist()
        drafts = from_bytes(plan.num_draft_tokens).tolist()
        assert sum(known) + sum(drafts) <= self.description.max_num_batched_tokens

        columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
        num_fed = deepest = 0
        response = worker_pb2.ExecuteResponse(sequence=plan.sequence, slots=plan.slots)
        for slot, num_known, num_drafts in zip(slots, known, drafts, strict=True):
            row = self.rows[slot]
            new, counts, source, nodes = list[int](), [0] * 4, DraftSource.TARGET, [-1]
            position = -1
            if row.request_id in self.failing:
                response.errors.add(slot=slot, message=f"{row.request_id} fails")
            elif not row.ended:
                num_computed = row.num_computed
                new, counts, source, nodes, position = self._run_row(row, num_known, num_drafts)
                reported = row.report(slot, self.description.vocab_size, num_computed, len(new))
                if reported is not None and not self.is_silent:
                    response.logprobs.append(reported)
                num_fed += num_known + counts[0]
                if self._drafter is not None and source == self._drafter.source:
                    levels = self._drafter.count_levels(np.array([counts[0] - counts[2]], np.int32))
                    deepest = max(deepest, int(levels[0]))
            parts: list[Sequence[int]] = [[len(row.token_ids)], [len(new)], new, counts[:1]]
            parts += counts[1:2], [source], nodes[:1], nodes[1:], [position]
            parts += counts[2:3], counts[3:]
            for name, values in zip(COLUMNS, parts, strict=True):
                columns[name] += values
        if DraftSource.PREDICTION not in columns["draft_sources"]:
            del columns["window_nodes"], columns["accepted_nodes"]
        if max(columns["draft_positions"]) < 0 and self.num_steps % 2:
            # It may be empty or full of -1 then.
            del columns["draft_positions"]
        has_form = any(columns["num_form_drafted_tokens"])
        for name, column in columns.items():
            is_said = has_form or not name.startswith("num_form_")
            setattr(response, name, to_bytes(column) if is_said else b"")
        response.num_tokens, response.draft_ns = num_fed, 2000 * deepest
        response.step_ns = 1000 * (10 + num_fed) + response.draft_ns
        return response

    def _run_row(
        self, row: Row, num_known: int, num_drafts: int
    ) -> tuple[list[int], list[int], DraftSource, list[int], int]:
        """Returns what a row emits, drafts and accepted ones, those of its form, and of the others
        the source, nodes and position."""
        end = row.num_computed + num_known
        capacity = len(row.blocks) * self.description.block_size
        assert num_known > 0
        assert num_drafts >= 0
        assert end <= len(row.token_ids)
        assert num_drafts == 0 or end == len(row.token_ids)
        # Nobody needs the keys and values of a request's last token.
        assert min(end + num_drafts, row.max_length - 1) <= capacity
        room = min(capacity - end, row.max_length - end - 1)
        source, base, position = self._draft(row, min(num_drafts, room))
        of_form = self._draft_form(row, base, min(num_drafts, room) - len(base))
        nodes = base | of_form
        if of_form and not base:
            source = DraftSource.FORM
        holders = self._holders()
        hashes = row.hashes(end)
        written = range(row.num_computed, end + len(nodes))
        self._write(row, written, [*hashes[row.num_computed :], *[-1] * len(nodes)])
        used = {row.blocks[position // self.description.block_size] for position in written}
        assert all(holders[block] == 1 for block in used)
        assert self._kv_of(row, end) == hashes
        row.num_computed = end
        if end < len(row.token_ids):
            return [], [0] * 4, DraftSource.TARGET, [-1], -1
        new, known = list[int](), hashes[-1]
        while not new or tuple(new) in nodes:
            new.append(known % self.description.vocab_size)
            known = prefix_hash(new[-1:], known)
        is_windows = source == DraftSource.PREDICTION
        accepted = [tuple(new[:end]) for end in range(1, len(new))]
        num_of_form = len(of_form.intersection(accepted))
        of_window = row.find_nodes(new[: len(accepted) - num_of_form]) if is_windows else [-1]
        row.extend(new)
        # The accepted path moves to the front of what the drafts were written to.
        kept = range(end, end + len(new) - 1)
        self._write(row, kept, row.hashes(end + len(kept))[end:])
        row.num_computed += len(new) - 1
        counts = [len(nodes), len(accepted), len(of_form), num_of_form]
        return new, counts, source, of_window, position

    def _draft(self, row: Row, most: int) -> tuple[DraftSource, set[tuple[int, ...]], int]:
        """Returns the source, the nodes, each as the path that leads to it, and where in the
        prediction a lookup has found them, -1 for nowhere."""
        source, nodes = DraftSource.PREDICTION, row.nodes()
        if not nodes and self._drafter is not None:
            source, paths = self._drafter.source, self._guess(row.token_ids, self._drafter)
            most = min(most, self._drafter.max_tokens)
            longest = max(map(len, paths), default=0)
            every = [tuple(path[: depth + 1]) for depth in range(longest) for path in paths]
            nodes = list(dict.fromkeys(every))
        chosen, position = nodes[:most], -1
        num_positions = row.num_predicted - len(chosen) + 1
        if source == DraftSource.NGRAM and chosen and num_positions > 0:
            position = 7 * len(row.token_ids) % num_positions
        if source == DraftSource.PREDICTION or position >= 0:
            output = tuple(row.token_ids[row.num_prompt_tokens :])
            self.drafted.append((row.request_id, output, chosen, position))
        return (source, set(chosen), position) if chosen else (DraftSource.TARGET, set(), -1)

    def _draft_form(self, row: Row, base: set[tuple[int, ...]], most: int) -> set[tuple[int, ...]]:
        """Returns nodes of a path, after those of the base on it, which is mostly right."""
        path, nodes = tuple[int, ...](), set[tuple[int, ...]]()
        while row.sampling.grammar and len(nodes) < most:
            sequence = [*row.token_ids, *path]
            is_wrong = prefix_hash([*sequence, -3]) % 4 == 0
            token = next_token(sequence, self.description.vocab_size) + is_wrong
            path = (*path, token % self.description.vocab_size)
            nodes |= {path} - base
        return nodes

    def _guess(self, token_ids: list[int], drafter: Drafter) -> list[list[int]]:
        """Returns the branches of a tree; the first ones are mostly what the model will say."""
        branches = [list[int]() for _ in range(-(-drafter.max_tokens // drafter.max_depth))]
        for _ in range(drafter.max_depth):
            sequence = token_ids + branches[0]
            right = next_token(sequence, self.description.vocab_size)
            is_wrong = zlib.crc32(np.array([*sequence, -1], np.int32).tobytes()) % 4 == 0
            for index, branch in enumerate(branches):
                branch.append((right + index + is_wrong) % self.description.vocab_size)
        return branches

    def _write(self, row: Row, positions: range, hashes: list[int]) -> None:
        block_size = self.description.block_size
        for position, value in zip(positions, hashes, strict=True):
            self._kv[row.blocks[position // block_size]][position % block_size] = value

    def _kv_of(self, row: Row, length: int) -> list[int]:
        return [each for block in row.blocks for each in self._kv[block]][:length]
