"""A worker without a model: its next token is a hash of the sequence, its KV the prefix's hash."""

import zlib
from dataclasses import dataclass, field

import numpy as np

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes, to_bytes


def prefix_hash(token_ids: list[int]) -> int:
    return zlib.crc32(np.array(token_ids, np.int32).tobytes())


def next_token(token_ids: list[int], vocab_size: int) -> int:
    return prefix_hash(token_ids) % vocab_size


def expected_output(
    prompt: list[int], vocab_size: int, max_length: int, stops: set[int], min_tokens: int = 0
) -> list[int]:
    """Returns what the model says alone, cut at a stop token or the length limit."""
    sequence = list(prompt)
    while len(sequence) < max_length:
        sequence.append(next_token(sequence, vocab_size))
        if sequence[-1] in stops and len(sequence) - len(prompt) >= min_tokens:
            break
    return sequence[len(prompt) :]


@dataclass
class Row:
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    window_base: int = 0
    window: list[int] = field(default_factory=list)

    def drafts(self, most: int) -> list[int]:
        output = self.token_ids[self.num_prompt_tokens :]
        since = output[self.window_base :]
        if len(output) < self.window_base or self.window[: len(since)] != since:
            return []
        return self.window[len(since) : len(since) + most]


class FakeWorker:
    """Keeps the rules of the contract and raises AssertionError where a plan breaks one."""

    def __init__(
        self,
        vocab_size: int = 50,
        max_model_len: int = 64,
        block_size: int = 4,
        num_blocks: int = 32,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 16,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.description = worker_pb2.DescribeResponse(
            model="fake",
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            eos_token_ids=to_bytes(eos_token_ids),
        )
        self.admitted: list[str] = []
        self.failing: set[str] = set()
        self.num_steps = 0
        self.restart()

    def restart(self) -> None:
        self.rows: dict[int, Row] = {}
        self._kv: dict[tuple[int, int], int] = {}

    def execute(self, plan: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteResponse:
        self.num_steps += 1
        for slot in from_bytes(plan.released_slots).tolist():
            del self.rows[slot]
        for admission in plan.admissions:
            assert admission.slot not in self.rows
            assert 0 <= admission.slot < self.description.max_num_seqs
            self.admitted.append(admission.request_id)
            tokens = from_bytes(admission.token_ids).tolist()
            self.rows[admission.slot] = Row(
                admission.request_id, tokens, admission.num_prompt_tokens
            )
        for window in plan.windows:
            row = self.rows[window.slot]
            row.window_base, row.window = window.base, from_bytes(window.token_ids).tolist()
        return self._run_rows(plan)

    def _run_rows(self, plan: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteResponse:
        slots = from_bytes(plan.slots).tolist()
        known = from_bytes(plan.num_known_tokens).tolist()
        drafts = from_bytes(plan.num_draft_tokens).tolist()
        assert len(set(slots)) == len(slots) > 0
        assert sum(known) + sum(drafts) <= self.description.max_num_batched_tokens
        blocks = iter(from_bytes(plan.new_blocks).tolist())
        for slot, count in zip(slots, from_bytes(plan.num_new_blocks).tolist(), strict=True):
            self.rows[slot].blocks += [next(blocks) for _ in range(count)]
        assert next(blocks, None) is None
        owned = [block for row in self.rows.values() for block in row.blocks]
        assert len(set(owned)) == len(owned)
        assert all(0 <= block < self.description.num_blocks for block in owned)

        lengths, emitted, drafted, accepted = [], [], [], []
        tokens: list[int] = []
        response = worker_pb2.ExecuteResponse(sequence=plan.sequence, slots=plan.slots)
        for slot, num_known, num_drafts in zip(slots, known, drafts, strict=True):
            row = self.rows[slot]
            if row.request_id in self.failing:
                response.errors.add(slot=slot, message=f"{row.request_id} fails")
                new, counts = list[int](), (0, 0)
            else:
                new, counts = self._run_row(row, num_known, num_drafts)
            lengths.append(len(row.token_ids))
            emitted.append(len(new))
            tokens += new
            drafted.append(counts[0])
            accepted.append(counts[1])
        response.lengths, response.num_emitted_tokens = to_bytes(lengths), to_bytes(emitted)
        response.token_ids = to_bytes(tokens)
        response.num_drafted_tokens = to_bytes(drafted)
        response.num_accepted_tokens = to_bytes(accepted)
        return response

    def _run_row(
        self, row: Row, num_known: int, num_drafts: int
    ) -> tuple[list[int], tuple[int, int]]:
        end = row.num_computed + num_known
        assert num_known > 0
        assert end <= len(row.token_ids)
        assert num_drafts == 0 or end == len(row.token_ids)
        assert end + num_drafts <= len(row.blocks) * self.description.block_size
        drafts = row.drafts(num_drafts)
        inputs = row.token_ids + drafts
        for position in range(row.num_computed, end + len(drafts)):
            self._kv[self._place(row, position)] = prefix_hash(inputs[: position + 1])
        for position in range(end):
            assert self._kv[self._place(row, position)] == prefix_hash(inputs[: position + 1])
        row.num_computed = end
        if end < len(row.token_ids):
            return [], (0, 0)
        new: list[int] = []
        for draft in [*drafts, None]:
            new.append(next_token(row.token_ids + new, self.description.vocab_size))
            if new[-1] != draft:
                break
        row.token_ids += new
        row.num_computed += len(new) - 1
        return new, (len(drafts), len(new) - 1)

    def _place(self, row: Row, position: int) -> tuple[int, int]:
        block_size = self.description.block_size
        return row.blocks[position // block_size], position % block_size
