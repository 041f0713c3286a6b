"""A pass over rows of every kind has the logits of plain passes over each text by itself."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from optimist_worker.core.attention.kv import KVPool
from optimist_worker.model.model import Model, load_model
from tests.checkpoints import ATTENTION_FAMILIES, SLIDING_WINDOW, VOCAB_SIZE, tiny_checkpoint
from tests.worker.handmade_batch import BatchRow, handmade_batch

BLOCK_SIZE = 8
NUM_BLOCKS = 64
LENGTH = 72
PARENTS = (-1, 0, 0, 1, 1, 2, 5)
KNOWN = (40, 52, 60, 33)
"""Tokens of each text that are computed before the pass that is checked."""


def run(
    model: Model, pool: KVPool, tables: list[list[int]], rows: list[tuple[BatchRow, list[int]]]
) -> list[torch.Tensor]:
    """Runs a padded pass; returns the logits of every row's tokens."""
    batch = handmade_batch(
        [row for row, _ in rows], tables, pool, num_padded_tokens=3, num_padded_rows=2
    )
    token_ids = [token_id for _, tokens in rows for token_id in tokens]
    with torch.inference_mode():
        logits = model.module(
            input_ids=torch.tensor([[*token_ids, 0, 0, 0]]),
            position_ids=batch.positions[None],
            use_cache=False,
            paged=batch,
        ).logits[0, : len(token_ids)]
    return list(torch.split(logits, [row.num_queries for row, _ in rows]))


@pytest.mark.parametrize("family", ATTENTION_FAMILIES)
def test_mixed_batch_with_a_tree(family: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    path = tiny_checkpoint(tmp_path, family)
    # PyTorch has no grouped products of float64, which mixtures of experts are made of.
    dtype = torch.float32 if family in ("gpt_oss", "deepseek_v3") else torch.float64
    model = load_model(str(path), str(dtype).removeprefix("torch."), "cpu")
    auto_model: Any = transformers.AutoModelForCausalLM
    reference = auto_model.from_pretrained(path, dtype=dtype, attn_implementation="eager")

    def expected(tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = reference(torch.tensor([tokens]), use_cache=False).logits
        return logits[0]

    rng = random.Random(family)
    texts = [rng.choices(range(3, VOCAB_SIZE), k=LENGTH) for _ in range(4)]
    nodes = rng.choices(range(3, VOCAB_SIZE), k=len(PARENTS))
    blocks = rng.sample(range(NUM_BLOCKS - 1), k=4 * 10)
    tables = [blocks[10 * number : 10 * number + 10] for number in range(4)]
    pool = KVPool(model.layers, NUM_BLOCKS, BLOCK_SIZE, dtype, model.device)
    for memory in (*pool.keys, *pool.values):
        memory.zero_()  # Padding reads nothing, but writes its own block.

    prompts = [(BatchRow(0, known), text[:known]) for text, known in zip(texts, KNOWN, strict=True)]
    for output, text in zip(run(model, pool, tables, prompts), texts, strict=True):
        close(output, expected(text)[: len(output)])
    # Wrong drafts leave keys behind the known tokens, which the next pass has to overwrite.
    wrong = [7, *nodes[::-1]]
    stale = [(BatchRow(known, 1, PARENTS), wrong) for known in KNOWN]
    run(model, pool, tables, stale)

    tree = BatchRow(KNOWN[3], 1, PARENTS)
    chunk, decode, verify, branches = run(
        model,
        pool,
        tables,
        [
            (BatchRow(KNOWN[0], 30), texts[0][40:70]),
            (BatchRow(KNOWN[1], 1), texts[1][52:53]),
            (BatchRow(KNOWN[2], 7), texts[2][60:67]),
            (tree, [texts[3][33], *nodes]),
        ],
    )

    assert KNOWN[3] > SLIDING_WINDOW
    for output, text, known in zip((chunk, decode, verify), texts, KNOWN, strict=False):
        close(output, expected(text)[known : known + len(output)])
    close(branches[0], expected(texts[3][:34])[-1])
    for node, nodes_of_path in enumerate(tree.paths):
        text = texts[3][:34] + [nodes[number] for number in nodes_of_path]
        close(branches[1 + node], expected(text)[-1])


def close(output: torch.Tensor, expected: torch.Tensor) -> None:
    """Asserts near equality; some models take their softmax in float32 whatever their weights."""
    tolerance = 1e-5 if output.dtype == torch.float64 else 2e-4
    torch.testing.assert_close(output, expected, atol=tolerance, rtol=tolerance)
