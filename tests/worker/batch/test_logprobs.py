"""Log-probabilities: those of the model itself, of every token, however it came."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.batch.logprobs import score_tokens
from optimist_worker.core.plan import PlannedRow
from optimist_worker.runner.runner import Runner
from tests.checkpoints import VOCAB_SIZE
from tests.worker.batch.scored import Scored, check_scored, generate_scored, scores_of, take
from tests.worker.drafters.drafting import SHAPES, drafting_runner
from tests.worker.runner.test_runner import MANNERS, partly_right, window_trees
from tests.worker.step import (
    BLOCK_SIZE,
    Predict,
    admit,
    blocks_of,
    build_runner,
    plain_text,
    plan_rows,
    rows_of,
)

TINY_EDIT = Path(__file__).parents[3] / "models" / "tiny-edit"
PROMPT = random.Random(3).choices(range(3, VOCAB_SIZE), k=25)
WANTING = SamplingParams(num_logprobs=5, num_prompt_logprobs=3)
ANY_FIXTURE = [HealthCheck.function_scoped_fixture]


@pytest.fixture(scope="module")
def deviceless(llama_path: Path) -> Runner:
    """One that pads, as where sizes cannot be read."""
    return build_runner(llama_path, reads_sizes=False)


@settings(max_examples=30, deadline=None, suppress_health_check=ANY_FIXTURE)
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
    check_scored(scored, llama_path, torch.float64, sampling)


@pytest.mark.parametrize("rule", AcceptanceRule)
@pytest.mark.parametrize(("way", "shape"), [("ngram", "chain"), ("itself", "fixed")])
def test_they_are_reported_of_what_the_drafter_drafts(
    llama_path: Path, way: str, shape: str, rule: AcceptanceRule
) -> None:
    runner = drafting_runner(llama_path, way, SHAPES[shape], rule=rule)
    prompt = PROMPT[:5] * 5
    manner = MANNERS["sampled" if way == "itself" else "greedy"]
    sampling = replace(manner, num_logprobs=5, num_prompt_logprobs=3)
    scored = generate_scored(runner, prompt, 40, sampling, width=SHAPES[shape].num_tokens, chunk=9)
    assert scored.num_accepted > 0
    check_scored(scored, llama_path, torch.float64, sampling)


def test_a_grammar_changes_what_is_said_and_not_what_is_likely() -> None:
    runner = build_runner(TINY_EDIT, "float64")
    sampling = replace(WANTING, grammar='start: "yes" | "no"')
    scored = generate_scored(runner, list(range(40, 60)), 2, sampling)
    check_scored(scored, TINY_EDIT, torch.float64, sampling)
    assert min(logprob for logprob, _, _ in scored.of_output) < -1


def test_a_request_that_comes_back_has_its_prompt_again(llama: Runner, llama_path: Path) -> None:
    before = generate_scored(llama, PROMPT, 8, WANTING)
    llama.release_all()
    tokens = PROMPT + before.output
    scored = Scored(PROMPT, list(before.output), {}, list(before.of_output))
    admission = admit(0, tokens, WANTING, num_prompt_tokens=len(PROMPT))
    take(
        scored,
        llama.execute(plan_rows(1, [PlannedRow(0, 30, 0, blocks_of(0))], admissions=[admission])),
    )
    assert len(scored.of_prompt) == len(PROMPT) - 1
    while len(scored.output) < 20:
        take(scored, llama.execute(plan_rows(2, [PlannedRow(0, 30, 0, [])])))
    check_scored(scored, llama_path, torch.float64, WANTING)


def test_nothing_is_reported_of_a_prompt_that_is_cached(llama: Runner) -> None:
    whole = generate_scored(llama, PROMPT, 1, WANTING)
    # The blocks still hold what they held.
    llama.release_all()
    admission = admit(0, PROMPT, WANTING, cached_blocks=blocks_of(0)[:1])
    result = llama.execute(
        plan_rows(1, [PlannedRow(0, 1000, 0, blocks_of(0)[1:])], admissions=[admission])
    )
    scored = Scored(PROMPT)
    take(scored, result)
    assert list(scored.of_prompt) == list(range(BLOCK_SIZE + 1, len(PROMPT)))
    for position, index in scored.of_prompt.items():
        assert index[1] == whole.of_prompt[position][1]
        assert index[0] == pytest.approx(whole.of_prompt[position][0], abs=1e-6)


def test_rows_get_what_they_ask_for(llama: Runner) -> None:
    llama.release_all()
    asked = [None, 0, 20, None]
    prompts = [None, None, 1, 0]
    admissions = [
        admit(slot, PROMPT, SamplingParams(num_logprobs=of_output, num_prompt_logprobs=of_prompt))
        for slot, (of_output, of_prompt) in enumerate(zip(asked, prompts, strict=True))
    ]
    rows = [PlannedRow(slot, 10, 0, blocks_of(slot)) for slot in range(4)]
    result = llama.execute(plan_rows(1, rows, admissions=admissions))
    assert {scored.slot: scored.num_prompt_tokens for scored in result.logprobs} == {2: 10, 3: 10}
    result = llama.execute(plan_rows(2, [PlannedRow(slot, 30, 0, []) for slot in range(4)]))
    scored = {one.slot: one for one in result.logprobs}
    assert sorted(scored) == [1, 2, 3]
    assert [len(ids) for _, ids, _ in scores_of(scored[1])] == [0]
    assert [len(ids) for _, ids, _ in scores_of(scored[2])] == [1] * 14 + [20]
    assert [len(ids) for _, ids, _ in scores_of(scored[3])] == [0] * 14
    result = llama.execute(plan_rows(3, [PlannedRow(slot, 1, 0, []) for slot in range(4)]))
    assert [one.slot for one in result.logprobs] == [1, 2]


@pytest.mark.parametrize("chunk", [6, 25])
def test_a_prompt_without_a_likelihood_fails_its_own_request(llama_path: Path, chunk: int) -> None:
    runner = build_runner(llama_path)
    weights = runner.engine.model.module.get_input_embeddings().weight
    with torch.no_grad():
        weights[2] = torch.nan
    admissions = [admit(0, [5, 2, *PROMPT[2:]], WANTING), admit(1, PROMPT, WANTING)]
    rows = [PlannedRow(slot, chunk, 0, blocks_of(slot)) for slot in range(2)]
    result = runner.execute(plan_rows(1, rows, admissions=admissions))
    failed, fine = rows_of(result)
    assert failed.error == "the model's logits are not finite"
    assert failed.token_ids == []
    assert fine.error is None
    assert [scored.slot for scored in result.logprobs] == [1]


def test_a_row_that_lacks_blocks_reports_nothing(llama: Runner) -> None:
    llama.release_all()
    admissions = [admit(slot, PROMPT, WANTING) for slot in range(2)]
    rows = [PlannedRow(0, 25, 0, blocks_of(0)[:1]), PlannedRow(1, 25, 0, blocks_of(1))]
    result = llama.execute(plan_rows(1, rows, admissions=admissions))
    assert "too few blocks" in result.errors[0]
    assert [scored.slot for scored in result.logprobs] == [1]
    llama.release_all()
    result = llama.execute(plan_rows(2, rows[:1], admissions=admissions[:1]))
    assert "too few blocks" in result.errors[0]
    assert not result.logprobs


@given(
    seed=st.integers(0, 1000),
    number=st.integers(0, 9),
    vocab_size=st.integers(1, 50),
    width=st.integers(0, 20),
    levels=st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_equally_likely_tokens_stand_in_order(
    seed: int, number: int, vocab_size: int, width: int, levels: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (number, vocab_size)
    logits = (torch.randint(-levels, levels, shape, generator=generator) / 4).to(dtype)
    logits[logits == 0] *= -1
    tokens = torch.randint(0, vocab_size, (number,), generator=generator)
    scored = score_tokens(logits, tokens, width)
    width = min(width, vocab_size)
    assert scored.shape == (number, 1 + 2 * width)
    expected = logits.float().log_softmax(-1)
    for row, token, found in zip(expected.tolist(), tokens.tolist(), scored, strict=True):
        order = sorted(range(vocab_size), key=lambda one: (-row[one], one))[:width]
        assert found[1 : 1 + width].tolist() == order
        values = torch.cat([found[:1], found[1 + width :]]).view(torch.float32)
        assert values.tolist() == [row[one] for one in [token, *order]]


def test_memory_does_not_grow_with_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the slices are, the result is the same."""
    logits = torch.randn((37, 11), generator=torch.Generator().manual_seed(1))
    tokens = torch.arange(37) % 11
    whole = score_tokens(logits, tokens, 4)
    monkeypatch.setattr("optimist_worker.core.batch.logprobs._SCORES_AT_ONCE", 35)
    assert torch.equal(score_tokens(logits, tokens, 4), whole)
