"""Whatever is drafted and taken back, states and outputs are to the last bit those of the tokens
that stay, computed alone."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_worker.core.recurrence.delta import run_delta_rule
from optimist_worker.core.recurrence.states import StatePool
from tests.worker.recurrence.case import (
    BIAS,
    CHANNELS,
    HEADS,
    KEY_HEADS,
    NUM_SLOTS,
    SPECS,
    WEIGHT,
    Row,
    Tokens,
    lay_out,
    make_pool,
    rows,
    run,
    settle,
    states_of,
)


def paths_of(row: Row, first: int) -> list[list[int]]:
    """The tokens on the way to each token of a row whose first token has an index, itself last."""
    known = list(range(first, first + row.num_known))
    paths = [known[: number + 1] for number in range(row.num_known)]
    for node, parent in enumerate(row.parents):
        before = known if parent < 0 else paths[row.num_known + parent]
        paths.append([*before, first + row.num_known + node])
    return paths


def run_alone(pool: StatePool, slot: int, tokens: Tokens, path: list[int]) -> list[torch.Tensor]:
    """Runs the tokens of a path in passes of one; returns the outputs of the last."""
    outputs: list[torch.Tensor] = []
    for token in path:
        recurrent = lay_out(pool, [Row(slot, 1)], trees=False)
        outputs = [each[0] for each in run(recurrent, tokens.select([token]))]
    return outputs


def copy_states(pool: StatePool, slot: int, other: StatePool) -> None:
    for target, source in zip(states_of(other, slot), states_of(pool, slot), strict=True):
        target.copy_(source)


def check_pass(batch: list[Row], tokens: Tokens, pool: StatePool, *, trees: bool) -> None:
    """Runs a pass, and each of its tokens alone from the states before it."""
    before, scratch = make_pool(), make_pool()
    for slot in range(NUM_SLOTS):
        copy_states(pool, slot, before)
    recurrent = lay_out(pool, batch, trees=trees)
    found = run(recurrent, tokens)
    settle(recurrent, batch, trees=trees)
    first = 0
    for row in batch:
        paths = paths_of(row, first)
        first += len(paths)
        for path in paths:
            copy_states(before, row.slot, scratch)
            for whole, single in zip(
                found, run_alone(scratch, row.slot, tokens, path), strict=True
            ):
                assert torch.equal(whole[path[-1]], single)
        number = row.num_known + row.accepted[-1] + 1 if row.accepted else row.num_known
        copy_states(before, row.slot, scratch)
        run_alone(scratch, row.slot, tokens, paths[number - 1] if number else [])
        copy_states(scratch, row.slot, before)
    for slot in range(NUM_SLOTS):
        for one, other in zip(states_of(pool, slot), states_of(before, slot), strict=True):
            assert torch.equal(one, other)


def passes(*, trees: bool) -> st.SearchStrategy[list[list[Row]]]:
    return st.lists(rows(trees=trees), min_size=1, max_size=3)


@given(passes(trees=False))
@settings(max_examples=15, deadline=None)
def test_chains_leave_no_trace_but_what_was_accepted(batches: list[list[Row]]) -> None:
    pool = make_pool()
    for number, batch in enumerate(batches):
        tokens = Tokens.random(sum(row.num_known + len(row.parents) for row in batch), number)
        check_pass(batch, tokens, pool, trees=False)


@given(passes(trees=True))
@settings(max_examples=15, deadline=None)
def test_trees_leave_no_trace_but_what_was_accepted(batches: list[list[Row]]) -> None:
    pool = make_pool()
    for number, batch in enumerate(batches):
        tokens = Tokens.random(sum(row.num_known + len(row.parents) for row in batch), number)
        check_pass(batch, tokens, pool, trees=True)


def test_a_slot_begins_anew() -> None:
    pool = make_pool()
    run(lay_out(pool, [Row(1, 5), Row(2, 5)], trees=False), Tokens.random(10, 1))
    pool.clear(1)
    assert not any(state.any() for state in states_of(pool, 1))
    assert all(state.any() for state in states_of(pool, 2))


def test_the_delta_rule_is_that_of_its_paper() -> None:
    """S = S (a (I - b k k^T)) + b v k^T, as in equation 10."""
    tokens = Tokens.random(9, 1).delta
    pool = make_pool()
    found = run_delta_rule(lay_out(pool, [Row(2, 9)], trees=False), 1, tokens).double()
    for head in range(HEADS):
        key_head = head * KEY_HEADS // HEADS
        state = torch.zeros(tokens.values.shape[2], tokens.keys.shape[2], dtype=torch.float64)
        for token in range(9):
            query, key = (each[token, key_head].double() for each in tokens[:2])
            value = tokens.values[token, head].double()
            decay, rate = (each[token, head].double() for each in tokens[3:])
            kept = torch.eye(len(key)).double() - rate * torch.outer(key, key)
            state = decay * state @ kept + rate * torch.outer(value, key)
            torch.testing.assert_close(found[token, head], state @ query, rtol=1e-4, atol=1e-4)
        left = pool.matrices(1)[2, head].double()
        torch.testing.assert_close(left, state.T, rtol=1e-4, atol=1e-4)


def test_the_convolution_is_that_of_pytorch() -> None:
    tokens, pool, layer = Tokens.random(11, 2), make_pool(), 1
    found = [
        run(lay_out(pool, [Row(0, end - start)], trees=False), tokens.select(range(start, end)))[0]
        for start, end in ((0, 2), (2, 3), (3, 11))
    ]
    whole = tokens.inputs.T[None] * (1 + layer)
    padded = torch.nn.functional.pad(whole, (WEIGHT.shape[1] - 1, 0))
    wanted = torch.nn.functional.conv1d(padded, WEIGHT[:, None], BIAS, groups=CHANNELS)
    torch.testing.assert_close(torch.cat(found), wanted[0].T)
    assert SPECS[layer].num_channels == CHANNELS
