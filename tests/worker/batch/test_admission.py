"""Requests that enter a slot: cached blocks, and what can never run."""

import random
from typing import Any

import pytest
import torch

from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import PlannedRow, WindowUpdate
from optimist_worker.runner.runner import Runner
from tests.checkpoints import VOCAB_SIZE
from tests.worker.step import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    admit,
    blocks_of,
    generate,
    plan_rows,
    rows_of,
    run,
)

SHARED = random.Random(3).choices(range(3, VOCAB_SIZE), k=2 * BLOCK_SIZE)
PROMPTS = [[*SHARED, 5, 6, 7, 8], [*SHARED, 9], SHARED + [12] * 20]
MANNERS = [
    SamplingParams(),
    SamplingParams(temperature=1.1, seed=4, top_p=0.9),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5),
]


def contents(runner: Runner, blocks: list[int]) -> torch.Tensor:
    indices = [block * BLOCK_SIZE + i for block in blocks for i in range(BLOCK_SIZE)]
    pool = runner.engine.state.pool
    return torch.stack([memory[indices] for memory in pool.keys + pool.values])


def test_texts_on_shared_blocks_are_those_without_a_cache(llama: Runner) -> None:
    texts = [
        generate(llama, prompt, 24, sampling=sampling)
        for prompt, sampling in zip(PROMPTS, MANNERS, strict=True)
    ]
    llama.release_all()
    first = PlannedRow(0, len(PROMPTS[0]), 0, blocks_of(0))
    run(llama, plan_rows(1, [first], admissions=[admit(0, PROMPTS[0], MANNERS[0])]))
    cached = blocks_of(0)[:2]
    before = contents(llama, cached)
    admissions = [admit(i, PROMPTS[i], MANNERS[i], cached_blocks=cached) for i in (1, 2)]
    rows = [PlannedRow(i, len(PROMPTS[i]), 3, blocks_of(i)) for i in (1, 2)]
    plan = plan_rows(2, [PlannedRow(0, 1, 3, []), *rows], admissions=admissions)
    outputs: list[list[int]] = [texts[0][:1], [], []]
    num_fed = 0
    while min(len(output) for output in outputs) < 24:
        result = llama.execute(plan)
        num_fed = num_fed or result.num_tokens
        for row in rows_of(result):
            assert row.error is None
            outputs[row.slot] += row.token_ids
        windows = [
            WindowUpdate(i, len(outputs[i]), [*texts[i][len(outputs[i]) :][:2], 3, 3])
            for i in range(3)
        ]
        plan = plan_rows(3, [PlannedRow(i, 1, 3, []) for i in (2, 0, 1)], windows=windows)
    assert [output[:24] for output in outputs] == texts
    # Nothing was computed again: one token of slot 0, and what follows the cached ones.
    assert num_fed == 1 + 1 + 20
    assert torch.equal(contents(llama, cached), before)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cached_blocks": [0, 1]}, "cached_blocks: 32 tokens are cached, but at most 31 of 32"),
        ({"max_length": -1}, "max_length must be in 0 to 400, not -1"),
        ({"max_length": MAX_MODEL_LEN + 1}, "max_length must be in 0 to 400, not 401"),
        ({"max_length": 32}, "token_ids: 32 tokens leave no room for another within max_length"),
        ({"min_length": -1}, "min_length must be at least 0, not -1"),
        ({"token_ids": [5] * 400}, "400 tokens leave no room for another within max_length (400)"),
    ],
)
def test_requests_that_can_never_run_say_why(
    options: dict[str, Any], words: str, llama: Runner
) -> None:
    admissions = [admit(0, **{"token_ids": SHARED, **options}), admit(1, SHARED)]
    rows = [PlannedRow(slot, 32, 0, blocks_of(slot)) for slot in (0, 1)]
    bad, good = run(llama, plan_rows(1, rows, admissions=admissions))
    assert bad.error is not None
    assert words in bad.error
    assert (bad.token_ids, good.error, len(good.token_ids)) == ([], None, 1)
