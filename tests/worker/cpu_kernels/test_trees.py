"""A draft of a tree is computed, bit for bit, as its path would be without the tree."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_worker.core.plan import StepResult, WindowUpdate
from optimist_worker.runner.runner import Runner
from tests.checkpoints import VOCAB_SIZE
from tests.worker.attention.attention_case import (
    BLOCK_SIZE,
    BatchRow,
    Case,
    Shape,
    make_case,
)
from tests.worker.attention.test_attention import attend
from tests.worker.drafters.drafting import SHAPES, drafting_runner
from tests.worker.step import blocks_of, build_runner, generate

pytestmark = pytest.mark.usefixtures("each_target")
PROMPT = [5, 40, 7, 7, 31, 12]
NUM_TOKENS = 60


@st.composite
def trees(draw: st.DrawFn) -> BatchRow:
    parents = [draw(st.integers(max(-1, node - 9), node - 1)) for node in range(draw(NODES))]
    return BatchRow(draw(st.integers(0, 200)), draw(st.integers(1, 9)), tuple(parents))


NODES = st.integers(1, 16) | st.integers(60, 64)
OTHERS = [BatchRow(3, 9), BatchRow(100, 1, (-1, 0, 0)), BatchRow(0, 70)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=8, deadline=None)
@given(
    row=trees(),
    window=st.none() | st.integers(1, 150),
    softcap=st.none() | st.just(5.0),
    has_sinks=st.booleans(),
    shape=st.sampled_from([Shape(6, 2, 64, 64), Shape(2, 2, 10, 40)]),
)
def test_a_node_attends_as_its_path_without_the_tree(
    row: BatchRow,
    window: int | None,
    softcap: float | None,
    has_sinks: bool,
    shape: Shape,
    dtype: torch.dtype,
) -> None:
    case = make_case([*OTHERS, row], shape, dtype)
    sinks = torch.linspace(-1, 3, shape.num_heads) if has_sinks else None
    options: dict[str, Any] = {"window": window, "softcap": softcap, "sinks": sinks}
    found = attend(case, **options)[-row.num_queries :]
    alone = case.alone(len(OTHERS))
    for path in row.paths:
        queries = [*range(row.num_tokens), *(row.num_tokens + node for node in path)]
        chain = without_tree(alone, queries)
        expected = attend(chain, **options)
        assert torch.equal(found[queries], expected), path
        last = BatchRow(row.tree_start + len(path) - 1, 1)
        decoded = Case(shape, [last], chain.tables, chain.pool, chain.query[:, :, -1:])
        assert torch.equal(attend(decoded, **options)[0], expected[-1]), path


def without_tree(case: Case, queries: list[int]) -> Case:
    """Returns some tokens of a row as a chain, with keys and values where a chain has them."""
    (row,), (table,), pool = case.rows, case.tables, copy.deepcopy(case.pool)
    keys = torch.arange(row.num_computed, row.num_computed + len(queries))
    target = torch.tensor(table)[keys // BLOCK_SIZE] * BLOCK_SIZE + keys % BLOCK_SIZE
    pool.move(case.batch().slot_mapping[queries], target)
    chain = BatchRow(row.num_computed, len(queries))
    return Case(case.shape, [chain], case.tables, pool, case.query[:, :, queries])


def tree_of(right: list[int], base: int) -> WindowUpdate:
    """A window of what is right, behind and beside other tokens."""
    parents: list[int] = []
    token_ids: list[int] = []
    last = -1
    for token in right:
        wrong = [(token + 1) % VOCAB_SIZE, (token + 2) % VOCAB_SIZE]
        number = len(token_ids)
        parents += [last, number, last]
        token_ids += [*wrong, token]
        last = number + 2
    return WindowUpdate(0, base, token_ids, parents)


@pytest.mark.parametrize(("family", "dtype"), [("llama", "bfloat16"), ("gemma2", "float32")])
def test_what_is_kept_of_accepted_drafts_is_what_decoding_keeps(
    family: str, dtype: str, checkpoint: Callable[[str], Path]
) -> None:
    """Keys and values of all layers, and so all that is computed of them, are the same bits."""
    runner = build_runner(checkpoint(family), dtype)
    truth = generate(runner, PROMPT, NUM_TOKENS)
    kept = kept_of(runner)
    for number in (1, 9):

        def predict(output: list[int], number: int = number) -> WindowUpdate:
            return tree_of(truth[len(output) : len(output) + number], len(output))

        assert generate(runner, PROMPT, NUM_TOKENS, predict=predict, width=27) == truth
        assert torch.equal(kept_of(runner), kept)


def kept_of(runner: Runner) -> torch.Tensor:
    """Keys and values of what slot 0 has computed, `[2 * num_layers, num_tokens, numbers]`."""
    pool = runner.engine.state.pool
    blocks = torch.tensor(blocks_of(0))[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)
    indices = blocks.flatten()[: len(PROMPT) + NUM_TOKENS - 1]
    return torch.stack([memory[indices].flatten(1) for memory in (*pool.keys, *pool.values)])


def test_text_in_bfloat16_is_the_same_with_trees_of_a_drafter(llama_path: Path) -> None:
    truth = generate(build_runner(llama_path, "bfloat16"), PROMPT, NUM_TOKENS)
    runner = drafting_runner(llama_path, "draft_model", SHAPES["dynamic"], dtype="bfloat16")
    numbers: list[int] = []

    def note(result: StepResult) -> None:
        numbers.append(int(result.num_accepted_tokens[0]))

    assert generate(runner, PROMPT, NUM_TOKENS, width=12, note=note) == truth
    assert sum(numbers) > NUM_TOKENS // 10
