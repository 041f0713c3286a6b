"""Whether the parts of a scheduler's state contradict each other."""

import numpy as np

from optimist_scheduler.core.base.memory import BlockPool
from optimist_scheduler.core.requests.table import RequestTable, SlotStatus
from optimist_scheduler.core.scheduler import Scheduler


def check_integrity(scheduler: Scheduler) -> None:
    """Blocks, columns, requests and queue agree."""
    state = scheduler._state
    check_pool(state.blocks)
    check_table(state.table)
    running = set(state.running.tolist())
    for slot, request in enumerate(state.table.requests):
        status = state.table.status[slot]
        assert (slot in running) == (status == SlotStatus.RUNNING)
        assert request is not None or state.blocks.num_blocks[slot] == 0
    assert all(request.slot < 0 for request in state.waiting.requests)


def check_table(table: RequestTable) -> None:
    """A slot is free or has one request, whose counters are those of what is in flight."""
    taken = {slot for slot, request in enumerate(table.requests) if request is not None}
    assert not taken & set(table._free_slots)
    assert len(taken) + table.num_free_slots == len(table.requests)
    for slot, status in enumerate(table.status.tolist()):
        assert (slot in taken) == (status != SlotStatus.FREE)
        if slot not in taken:
            continue
        assert table.request(slot).slot == slot
        placeholders = int(table.num_output_placeholders[slot])
        in_flight = int(table.num_plans_in_flight[slot]), int(table.num_in_flight_tokens[slot])
        assert min(placeholders, *in_flight, int(table.num_emits_in_flight[slot])) >= 0
        assert in_flight[0] > 0 or (placeholders, in_flight[1]) == (0, 0)
        num_verified = int(table.num_computed_tokens[slot]) - placeholders
        assert status == SlotStatus.ENDED or num_verified < table.num_tokens[slot]


def check_pool(pool: BlockPool) -> None:
    """Every block is in one state, and the tables and the prefix cache agree on it."""
    lengths = np.arange(pool._tables.shape[1]) < pool.num_blocks[:, None]
    assert np.array_equal(pool._tables >= 0, lengths)
    counts = np.bincount(pool._tables[lengths], minlength=len(pool._stack))
    assert np.array_equal(counts, pool._num_references)
    for slot in range(len(pool._tables)):
        assert len(set(pool.table(slot).tolist())) == pool.num_blocks[slot]
    stacked, evictable = pool._stack[: pool._num_stacked], pool._evictable.ids
    referenced = np.flatnonzero(pool._num_references)
    blocks = np.sort(np.concatenate([stacked, evictable, referenced]))
    assert np.array_equal(blocks, np.arange(len(pool._stack)))
    assert not pool._is_cached[stacked].any()
    assert pool._is_cached[evictable].all()
    hash_of = {block: known for block, known in enumerate(pool._hash_of) if known}
    assert {block: known for known, block in pool._block_of.items()} == hash_of
    by_end = {int(run.blocks[-1]): run for run in pool._unhashed.values()}
    assert by_end == pool._unhashed_by_end
    unhashed = {block for run in by_end.values() for block in run.blocks.tolist()}
    assert not unhashed & set(hash_of)
    assert set(np.flatnonzero(pool._is_cached).tolist()) == set(hash_of) | unhashed
    # What is shared is cached: it is written no more.
    assert pool._is_cached[pool._num_references > 1].all()
