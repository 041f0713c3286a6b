"""Every family computes through our blocks what transformers computes by itself."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from optimist_worker.core.batch import build_batch
from optimist_worker.core.plan import PlannedRow
from optimist_worker.core.row import Row
from optimist_worker.model import load_model
from optimist_worker.runner import Runner
from tests.checkpoints import FAMILIES, SLIDING_WINDOW, VOCAB_SIZE, tiny_checkpoint
from tests.worker.step import admit, blocks_of, build_runner, generate, plan_rows, run

LENGTH = 72


def reference_model(path: Path, dtype: torch.dtype) -> Any:
    auto_model: Any = transformers.AutoModelForCausalLM
    return auto_model.from_pretrained(path, dtype=dtype, attn_implementation="eager")


def row_logits(runner: Runner, rows: list[tuple[int, int, list[int]]]) -> list[torch.Tensor]:
    """Runs (slot, known tokens, drafts) in one pass; returns the logits of each row's end."""
    batch_rows = [
        Row(slot_id, runner._slots[slot_id], num_known, drafts)
        for slot_id, num_known, drafts in rows
    ]
    batch = build_batch(batch_rows, runner.pool, runner.model.device)
    logits = runner.model.forward(batch)
    return list(torch.split(logits, [row.num_logits for row in batch_rows]))


@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_batch_has_the_logits_of_a_full_forward_pass(family: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, family)
    runner = build_runner(path, "float32")
    rng = random.Random(family)
    texts = [rng.choices(range(3, VOCAB_SIZE), k=LENGTH) for _ in range(4)]
    reference = reference_model(path, torch.float32)
    with torch.inference_mode():
        expected = [reference(torch.tensor([text]), use_cache=False).logits[0] for text in texts]
    known = [LENGTH, 41, 50, 60]
    plan = plan_rows(
        0,
        admissions=[admit(slot, texts[slot][: known[slot]]) for slot in range(4)],
        # Slot 0: a chunk of the prompt. Slot 3: its prompt but for the last chunk.
        rows=[
            PlannedRow(slot, size, 0, blocks_of(slot))
            for slot, size in ((0, 30), (1, 40), (2, 49), (3, 35))
        ],
    )
    assert [row.token_ids for row in run(runner, plan)] == [[], [], [], []]
    # A draft that is wrong from its second token on leaves stale keys behind position 50.
    wrong = [texts[2][50], *(token ^ 1 for token in texts[2][51:56])]
    row_logits(runner, [(2, 1, wrong)])

    middle, decode, verify, last_chunk = row_logits(
        runner,
        [(0, 20, []), (1, 1, []), (2, 1, texts[2][50:]), (3, 25, texts[3][60:64])],
    )

    assert LENGTH > 2 * SLIDING_WINDOW
    assert middle.shape == (0, VOCAB_SIZE)
    torch.testing.assert_close(decode, expected[1][40:41], atol=1e-4, rtol=0)
    torch.testing.assert_close(verify, expected[2][49:], atol=1e-4, rtol=0)
    torch.testing.assert_close(last_chunk, expected[3][59:64], atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_that_of_generate(family: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, family)
    prompt = random.Random(1).choices(range(3, VOCAB_SIZE), k=40)
    reference = reference_model(path, torch.float64)
    ids = torch.tensor([prompt])
    expected = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=40,
        do_sample=False,
        eos_token_id=None,
    )[0].tolist()[40:]
    assert len(set(expected)) > 3
    runner = build_runner(path)
    assert generate(runner, prompt, 40) == expected
    assert generate(runner, prompt, 40, chunk=7) == expected
    half_right = [token if i % 5 else 3 for i, token in enumerate(expected)] + [3]
    drafted = generate(
        runner, prompt, 40, predict=lambda output: half_right[len(output) :], width=6
    )
    assert drafted == expected


def test_model_is_described_by_its_config(llama_path: Path) -> None:
    model = load_model(str(llama_path), "float32", "cpu")
    assert model.vocab_size == VOCAB_SIZE
    assert model.max_position_embeddings == 1024
    assert model.eos_token_ids == [2]
    assert len(model.layers) == 4
    assert {(layer.num_kv_heads, layer.key_dim) for layer in model.layers} == {(2, 16)}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_stays_near_single(family: str, dtype: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, family)
    tokens = random.Random(4).choices(range(3, VOCAB_SIZE), k=40)
    logits = []
    for name in ("float32", dtype):
        runner = build_runner(path, name)
        run(
            runner,
            plan_rows(0, admissions=[admit(0, tokens)], rows=[PlannedRow(0, 30, 0, [7, 2, 5])]),
        )
        (row,) = row_logits(runner, [(0, 10, [])])
        logits.append(row.float())
    torch.testing.assert_close(logits[1], logits[0], atol=0.15 * logits[0].std().item(), rtol=0.1)
