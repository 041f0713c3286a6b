"""Every family computes through our blocks what transformers computes; features are of one pass."""

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from optimist_worker.core.batch.flat_batch import PassSize, lay_out_rows
from optimist_worker.core.batch.slot_table import fit_rows
from optimist_worker.core.drafts import Drafts, chain_parents
from optimist_worker.core.plan import PlannedRow
from optimist_worker.model.fused import LlamaLayer
from optimist_worker.model.model import FeatureTap
from optimist_worker.runner.runner import Runner
from tests.checkpoints import ATTENTION_FAMILIES, FAMILIES, SLIDING_WINDOW, VOCAB_SIZE
from tests.worker.step import MAX_MODEL_LEN, admit, blocks_of, build_runner, plan_rows, run

LENGTH = 72
IN_FLOAT32 = ("gpt_oss", "deepseek_v3", "qwen3", "gemma2", "gemma3")


@torch.inference_mode()
def row_logits(
    runner: Runner,
    rows: list[tuple[int, int, list[int]]],
    parents: list[int] | None = None,
) -> list[torch.Tensor]:
    """Runs (slot, known tokens, drafts) in one pass; returns the logits of each row's end.

    With `parents`, the drafts of the last row are a tree.
    """
    state, number = runner.engine.state, max(len(drafts) for _, _, drafts in rows)
    plan = torch.tensor([(slot, known, len(drafts)) for slot, known, drafts in rows]).T
    fitted = fit_rows(plan, state.table)
    token_ids = torch.zeros((len(rows), number), dtype=torch.int64)
    for index, (_, _, drafts) in enumerate(rows):
        token_ids[index, : len(drafts)] = torch.tensor(drafts, dtype=torch.int64)
    lengths = torch.tensor([len(drafts) for _, _, drafts in rows])
    tree = None
    if parents is not None:
        tree = chain_parents(len(rows), number, state.device).clone()
        tree[-1, : len(parents)] = torch.tensor(parents)
    drafted = Drafts(token_ids, lengths, torch.zeros_like(lengths), tree)
    num_logits = torch.where(fitted.emits, 1 + lengths, 0)
    size = PassSize(
        num_tokens=int((fitted.num_known_tokens + lengths).sum()),
        num_logits=int(num_logits.sum()),
        max_num_queries=int((fitted.num_known_tokens + lengths).max()),
        max_num_keys=MAX_MODEL_LEN,
    )
    layout = lay_out_rows(fitted.slots, state.table, fitted, drafted, size)
    batch = layout.build_batch(state.pool, fitted, size)
    return list(torch.split(runner.engine.model.forward(batch), num_logits.tolist()))


@pytest.mark.parametrize("family", ATTENTION_FAMILIES)
def test_rows_of_a_mixed_pass_have_the_logits_of_full_forward_passes(
    family: str, checkpoint: Callable[[str], Path]
) -> None:
    """Layers of Llama's shape are fused, and no others."""
    # PyTorch has no grouped products of float64, which mixtures of experts are made of; and kernels
    # for the CPU are not for it.
    dtype = torch.float32 if family in IN_FLOAT32 else torch.float64
    auto_model: Any = transformers.AutoModelForCausalLM
    reference = auto_model.from_pretrained(
        checkpoint(family), dtype=dtype, attn_implementation="eager"
    )
    runner = build_runner(checkpoint(family), str(dtype).removeprefix("torch."))
    layers = [part for part in runner.engine.model.module.modules() if isinstance(part, LlamaLayer)]
    assert len(layers) == (len(runner.engine.model.layers) if family in FAMILIES else 0)
    rng = random.Random(family)
    texts = [rng.choices(range(3, VOCAB_SIZE), k=LENGTH) for _ in range(5)]
    parents = [-1, 0, 0, -1, 2, 4, 3, 5]
    nodes = rng.sample(range(3, VOCAB_SIZE), k=len(parents))

    def expected(text: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = reference(torch.tensor([text]), use_cache=False).logits[0]
        return logits

    def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
        # Some models take norms and the softmax in float32 whatever their weights.
        tolerance = 1e-5 if dtype == torch.float64 else 1e-4 if family in FAMILIES else 2e-4
        torch.testing.assert_close(found, wanted, atol=tolerance, rtol=0)

    known = [LENGTH, 41, 50, 60, LENGTH]
    admissions = [admit(slot, texts[slot][: known[slot]]) for slot in range(5)]
    # Slot 0: a chunk of the prompt. Slot 3: its prompt but for the last chunk.
    fed = enumerate((30, 40, 49, 35, LENGTH - 2))
    rows = [PlannedRow(slot, size, 0, blocks_of(slot)) for slot, size in fed]
    assert not any(row.token_ids for row in run(runner, plan_rows(0, rows, admissions=admissions)))
    # A draft that is wrong from its second token on leaves stale keys after position 50.
    wrong = [texts[2][50], *(token ^ 1 for token in texts[2][51:56])]
    row_logits(runner, [(2, 1, wrong)])

    drafts = [[], [], texts[2][50:], texts[3][60:64], nodes]
    rows_to_run = list(zip(range(5), (20, 1, 1, 25, 2), drafts, strict=True))
    middle, decode, verify, last_chunk, tree = row_logits(runner, rows_to_run, parents)

    assert LENGTH > 2 * SLIDING_WINDOW
    assert middle.shape == (0, VOCAB_SIZE)
    check(decode, expected(texts[1])[40:41])
    check(verify, expected(texts[2])[49:])
    check(last_chunk, expected(texts[3])[59:64])
    check(tree[0], expected(texts[4])[-1])
    branches: list[list[int]] = []
    for index, parent in enumerate(parents):
        branches.append([*(branches[parent] if parent >= 0 else []), nodes[index]])
        check(tree[1 + index], expected(texts[4] + branches[-1])[-1])


class Layer(nn.Module):
    def forward(self, hidden: torch.Tensor, factor: float) -> tuple[torch.Tensor]:
        if factor < 0:
            raise RuntimeError("no memory")
        return (hidden * factor,)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer(), Layer()])

    def forward(self, hidden: torch.Tensor, *factors: float) -> torch.Tensor:
        for layer, factor in zip(self.layers, factors, strict=True):
            (hidden,) = layer(hidden, factor)
        return hidden


@pytest.mark.parametrize(
    ("layers", "expected"), [(None, [30.0] * 3), ((0, 2), [2.0] * 3 + [30.0] * 3)]
)
def test_features_are_those_of_the_last_pass_that_did_not_fail(
    layers: tuple[int, ...] | None, expected: list[float]
) -> None:
    hidden, decoder = torch.ones(1, 2, 3), SimpleNamespace(base_model=Base())
    tap = FeatureTap(decoder, layers)
    with pytest.raises(RuntimeError):
        decoder.base_model(hidden, 7.0, 7.0, -1.0)
    decoder.base_model(hidden, 2.0, 3.0, 5.0)
    assert tap.take().tolist() == [expected] * 2
