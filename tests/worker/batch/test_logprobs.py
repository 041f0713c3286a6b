"""Log-probabilities: those of the model itself, of every token, however it came."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from optimist_common.sampling import SamplingParams
from optimist_worker.core.batch import logprobs as logprobs_module
from optimist_worker.core.batch.logprobs import score_tokens
from optimist_worker.core.plan import Admission, PlannedRow, RowLogprobs, StepResult
from optimist_worker.runner.runner import Runner
from tests.checkpoints import VOCAB_SIZE
from tests.stack import BUNDLED_MODEL
from tests.worker.runner.test_runner import MANNERS, partly_right, window_trees
from tests.worker.step import (
    Predict,
    admit,
    blocks_of,
    build_runner,
    generate,
    plain_text,
    plan_rows,
    rows_of,
)

PROMPT = random.Random(3).choices(range(3, VOCAB_SIZE), k=25)
WANTING = SamplingParams(num_logprobs=5, num_prompt_logprobs=3)
ANY_FIXTURE = [HealthCheck.function_scoped_fixture]
TokenScores = tuple[float, list[int], list[float]]
"""The token's log-probability, the likeliest tokens, theirs."""
CLOSE = 1e-4


def scores_of(row: RowLogprobs) -> list[TokenScores]:
    """Returns what a row has scored, token by token."""
    number = row.num_prompt_tokens
    widths = [row.num_prompt_candidates] * number
    widths += [row.num_candidates] * (len(row.logprobs) - number)
    assert len(row.candidate_token_ids) == len(row.candidate_logprobs) == sum(widths)
    indices: list[TokenScores] = []
    first = 0
    for logprob, width in zip(row.logprobs.tolist(), widths, strict=True):
        part = slice(first, first + width)
        ids = row.candidate_token_ids[part].tolist()
        indices.append((logprob, ids, row.candidate_logprobs[part].tolist()))
        first += width
    return indices


@dataclass
class Scored:
    """One request: its tokens, and what was reported of them."""

    prompt: list[int]
    output: list[int] = field(default_factory=list)
    of_prompt: dict[int, TokenScores] = field(default_factory=dict)
    """By position."""
    of_output: list[TokenScores] = field(default_factory=list)
    num_accepted: int = 0

    def take(self, result: StepResult) -> None:
        """Takes the result of a step of a single row."""
        (row,) = rows_of(result)
        assert row.error is None, row.error
        self.output += row.token_ids
        self.num_accepted += row.num_accepted_tokens
        for one in result.logprobs:
            indices = scores_of(one)
            for offset in range(one.num_prompt_tokens):
                position = one.first_prompt_position + offset
                assert position not in self.of_prompt
                self.of_prompt[position] = indices[offset]
            of_output = indices[one.num_prompt_tokens :]
            assert len(of_output) in (0, len(row.token_ids))
            self.of_output += of_output


def generate_scored(
    runner: Runner, prompt: list[int], num_tokens: int, sampling: SamplingParams, **options: Any
) -> Scored:
    """Generates as `generate` does."""
    scored = Scored(prompt)
    generate(runner, prompt, num_tokens, sampling=sampling, note=scored.take, **options)
    return scored


def run_first(
    runner: Runner, admissions: Sequence[Admission], num_known: int, *num_blocks: int
) -> StepResult:
    """Runs first steps of requests, with enough blocks unless their numbers are given."""
    runner.release_all()
    numbers = num_blocks or [8] * len(admissions)
    rows = []
    for admission, number in zip(admissions, numbers, strict=True):
        blocks = blocks_of(admission.slot, number)[len(admission.cached_blocks) :]
        rows.append(PlannedRow(admission.slot, num_known, 0, blocks))
    return runner.execute(plan_rows(1, rows, admissions=admissions))


@lru_cache(maxsize=4)
def load_reference(path: Path) -> Any:
    auto_model: Any = AutoModelForCausalLM
    return auto_model.from_pretrained(str(path), dtype=torch.float64).eval()


@torch.inference_mode()
def check_scored(scored: Scored, path: Path, sampling: SamplingParams) -> None:
    """Compares all that was scored of a request with what transformers' own model says."""
    tokens, number = scored.prompt + scored.output, len(scored.prompt)
    logits = load_reference(path)(torch.tensor([tokens]), use_cache=False).logits[0]
    expected = logits.float().log_softmax(-1)
    of_prompt = list(scored.of_prompt.values())
    for width, first, end, indices in (
        (sampling.num_prompt_logprobs, 1, number, of_prompt),
        (sampling.num_logprobs, number, len(tokens), scored.of_output),
    ):
        if width is None:
            assert indices == []
            continue
        assert len(indices) == end - first
        for position, (logprob, ids, logprobs) in enumerate(indices, first):
            row = expected[position - 1]
            np.testing.assert_allclose(row[tokens[position]].numpy(), logprob, atol=CLOSE)
            assert len(ids) == len(set(ids)) == width
            assert logprobs == sorted(logprobs, reverse=True)
            np.testing.assert_allclose(row[ids].numpy(), logprobs, atol=CLOSE)
            np.testing.assert_allclose(row.topk(width).values.numpy(), logprobs, atol=CLOSE)
    assert list(scored.of_prompt) == list(range(1, 1 + len(of_prompt)))


@pytest.fixture(scope="module")
def deviceless(llama_path: Path) -> Runner:
    """One that pads, as where sizes cannot be read."""
    return build_runner(llama_path, reads_sizes=False)


@settings(max_examples=8, deadline=None, suppress_health_check=ANY_FIXTURE)
@given(
    data=st.data(),
    width=st.integers(0, 14),
    manner=st.sampled_from(sorted(MANNERS)),
    chunk=st.sampled_from([1, 4, 7, 24, 25, 1000]),
    wanted=st.tuples(*[st.none() | st.integers(0, 20)] * 2),
    reads=st.booleans(),
)
def test_they_are_the_models_whatever_was_drafted(
    llama: Runner,
    deviceless: Runner,
    llama_path: Path,
    data: st.DataObject,
    width: int,
    manner: str,
    chunk: int,
    wanted: tuple[int | None, int | None],
    reads: bool,
) -> None:
    sampling = replace(MANNERS[manner], num_logprobs=wanted[0], num_prompt_logprobs=wanted[1])
    truth = plain_text(llama, PROMPT, 30, MANNERS[manner])
    predict: Predict = partly_right(truth, data.draw(st.sets(st.integers(0, 29))))
    if data.draw(st.booleans()):
        predict = lambda output: data.draw(window_trees(truth, len(output)))  # noqa: E731
    runner = llama if reads else deviceless
    scored = generate_scored(
        runner, PROMPT, 30, sampling, predict=predict, width=width, chunk=chunk
    )
    assert scored.output[:30] == truth
    check_scored(scored, llama_path, sampling)


def test_a_grammar_changes_what_is_said_and_not_what_is_likely() -> None:
    runner = build_runner(BUNDLED_MODEL, "float64")
    sampling = replace(WANTING, grammar='start: "yes" | "no"')
    scored = generate_scored(runner, list(range(40, 60)), 2, sampling)
    check_scored(scored, BUNDLED_MODEL, sampling)
    assert min(logprob for logprob, _, _ in scored.of_output) < -1


def test_rows_get_what_they_ask_for(llama: Runner) -> None:
    asked = [(None, None), (0, None), (20, 1), (None, 0)]
    admissions = [
        admit(slot, PROMPT, SamplingParams(num_logprobs=of_output, num_prompt_logprobs=of_prompt))
        for slot, (of_output, of_prompt) in enumerate(asked)
    ]
    result = run_first(llama, admissions, 10)
    assert {scored.slot: scored.num_prompt_tokens for scored in result.logprobs} == {2: 10, 3: 10}
    result = llama.execute(plan_rows(2, [PlannedRow(slot, 30, 0, []) for slot in range(4)]))
    widths = {one.slot: [len(ids) for _, ids, _ in scores_of(one)] for one in result.logprobs}
    assert widths == {1: [0], 2: [1] * 14 + [20], 3: [0] * 14}
    result = llama.execute(plan_rows(3, [PlannedRow(slot, 1, 0, []) for slot in range(4)]))
    assert [one.slot for one in result.logprobs] == [1, 2]


def test_a_prompt_without_a_likelihood_fails_its_own_request(llama_path: Path) -> None:
    runner = build_runner(llama_path)
    weights = runner.engine.model.module.get_input_embeddings().weight
    with torch.no_grad():
        weights[2] = torch.nan
    admissions = [admit(0, [5, 2, *PROMPT[2:]], WANTING), admit(1, PROMPT, WANTING)]
    result = run_first(runner, admissions, 6)
    failed, fine = rows_of(result)
    assert failed.error == "the model's logits are not finite"
    assert failed.token_ids == []
    assert fine.error is None
    assert [scored.slot for scored in result.logprobs] == [1]


@given(
    seed=st.integers(0, 1000),
    number=st.integers(0, 9),
    vocab_size=st.integers(1, 50),
    width=st.integers(0, 20),
    levels=st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    at_once=st.integers(1, 200),
)
def test_equally_likely_tokens_stand_in_order_whatever_is_looked_at_at_once(
    seed: int,
    number: int,
    vocab_size: int,
    width: int,
    levels: int,
    dtype: torch.dtype,
    at_once: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (number, vocab_size)
    logits = (torch.randint(-levels, levels, shape, generator=generator) / 4).to(dtype)
    logits[logits == 0] *= -1
    tokens = torch.randint(0, vocab_size, (number,), generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprobs_module, "_SCORES_AT_ONCE", at_once)
        scored = score_tokens(logits, tokens, width)
    width = min(width, vocab_size)
    assert scored.shape == (number, 1 + 2 * width)
    expected = logits.float().log_softmax(-1)
    for row, token, found in zip(expected.tolist(), tokens.tolist(), scored, strict=True):
        order = sorted(range(vocab_size), key=lambda one: (-row[one], one))[:width]
        assert found[1 : 1 + width].tolist() == order
        values = torch.cat([found[:1], found[1 + width :]]).view(torch.float32)
        assert values.tolist() == [row[one] for one in [token, *order]]
