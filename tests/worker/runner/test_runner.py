"""Plans applied to the runner: exactness under any windows and on cached blocks, isolation of
errors, bounds."""

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import PlanError, PlannedRow, WindowUpdate
from optimist_worker.execution.executor import DeviceLostError
from optimist_worker.runner.runner import Runner
from tests.checkpoints import VOCAB_SIZE
from tests.worker.step import (
    BLOCK_SIZE,
    Predict,
    admit,
    begin,
    blocks_of,
    generate,
    go_on,
    plain_text,
    plan_rows,
    rows_of,
    run,
)

PROMPT = random.Random(5).choices(range(3, VOCAB_SIZE), k=25)
SAMPLED = SamplingParams(temperature=0.9, top_k=50, top_p=0.95, min_p=0.02, seed=-7)
PENALIZED = SamplingParams(
    temperature=0.0,
    repetition_penalty=1.4,
    presence_penalty=0.5,
    frequency_penalty=0.3,
    logit_bias={9: 1.5, 200: float("-inf")},
)
MANNERS = {
    "greedy": SamplingParams(),
    "sampled": SAMPLED,
    "penalized": PENALIZED,
    "both": SamplingParams(
        temperature=1.2, seed=2**62 + 3, frequency_penalty=1.0, logit_bias={4: 2.0}
    ),
}


def partly_right(truth: list[int], wrong_at: set[int]) -> Predict:
    text = [(t + 1) % VOCAB_SIZE if i in wrong_at else t for i, t in enumerate(truth)]
    return lambda output: text[len(output) :]


@st.composite
def window_trees(draw: st.DrawFn, truth: list[int], length: int) -> WindowUpdate:
    """A chain near the true text, and maybe branches after any of its nodes; some come true."""
    base = max(0, length - draw(st.integers(0, 3)))
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    for _ in range(draw(st.integers(1, 5))):
        parent = draw(st.integers(-1, len(tokens) - 1))
        depth = depths[parent] + 1 if parent >= 0 else 0
        wrong_at = draw(st.sets(st.integers(0, 6), max_size=2))
        for index, token in enumerate(
            truth[base + depth :][: draw(st.integers(0, 8) | st.just(30))]
        ):
            is_wrong = index in wrong_at
            tokens.append(draw(st.integers(0, VOCAB_SIZE)) if is_wrong else token)
            parents.append(parent)
            depths.append(depth + index)
            parent = len(tokens) - 1
    is_chain = parents == list(range(-1, len(tokens) - 1)) and draw(st.booleans())
    return WindowUpdate(0, base, tokens, [] if is_chain else parents)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    data=st.data(),
    width=st.integers(1, 14) | st.just(40),
    manner=st.sampled_from(sorted(MANNERS)),
    chunk=st.sampled_from([11, 1000]),
)
def test_text_is_the_same_with_any_windows(
    llama: Runner, data: st.DataObject, width: int, manner: str, chunk: int
) -> None:
    """Right and wrong branches, twins among siblings, late windows, and steps without a new one."""
    sampling = MANNERS[manner]
    truth = plain_text(llama, PROMPT, 30, sampling)
    assert len(set(truth)) > 5

    def predict(output: list[int]) -> WindowUpdate | None:
        is_new = data.draw(st.integers(0, 2)) > 0
        return data.draw(window_trees(truth, len(output))) if is_new else None

    text = generate(llama, PROMPT, 30, sampling=sampling, predict=predict, width=width, chunk=chunk)
    assert text == truth


def test_rows_do_not_depend_on_their_batch(llama: Runner) -> None:
    prompts = [PROMPT, PROMPT[3:20], PROMPT[::-1]]
    manners = [MANNERS["sampled"], MANNERS["both"], MANNERS["penalized"]]
    alone = [
        generate(llama, prompt, 20, sampling=sampling)
        for prompt, sampling in zip(prompts, manners, strict=True)
    ]
    llama.release_all()
    admissions = [admit(slot, prompts[slot], manners[slot]) for slot in range(3)]
    rows = [PlannedRow(slot, 6 + 2 * slot, 0, blocks_of(slot)) for slot in range(3)]
    together: list[list[int]] = [[], [], []]
    plan = plan_rows(0, admissions=admissions, rows=rows)
    while min(len(text) for text in together) < 20:
        for row in run(llama, plan):
            assert row.error is None
            together[row.slot] += row.token_ids
        windows = [
            WindowUpdate(slot, len(together[slot]), [*alone[slot][len(together[slot]) :][:3], 3])
            for slot in range(2)
        ]
        plan = plan_rows(
            0, windows=windows, rows=[PlannedRow(slot, 6, 4, []) for slot in (2, 0, 1)]
        )
    assert [text[:20] for text in together] == alone


SHARED = PROMPT + PROMPT[:7]


def contents(runner: Runner, blocks: list[int]) -> torch.Tensor:
    indices = [block * BLOCK_SIZE + i for block in blocks for i in range(BLOCK_SIZE)]
    pool = runner.engine.state.pool
    return torch.stack([memory[indices] for memory in pool.keys + pool.values])


def test_texts_on_shared_blocks_are_those_without_a_cache(llama: Runner) -> None:
    prompts = [[*SHARED, 5, 6, 7, 8], [*SHARED, 9], SHARED + [12] * 20]
    manners = [MANNERS["greedy"], MANNERS["sampled"], MANNERS["penalized"]]
    texts = [
        generate(llama, prompt, 24, sampling=sampling)
        for prompt, sampling in zip(prompts, manners, strict=True)
    ]
    llama.release_all()
    first = PlannedRow(0, len(prompts[0]), 0, blocks_of(0))
    run(llama, plan_rows(1, [first], admissions=[admit(0, prompts[0], manners[0])]))
    cached = blocks_of(0)[:2]
    before = contents(llama, cached)
    admissions = [admit(i, prompts[i], manners[i], cached_blocks=cached) for i in (1, 2)]
    rows = [PlannedRow(i, len(prompts[i]), 3, blocks_of(i)) for i in (1, 2)]
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


def test_request_goes_on_after_a_preemption(llama: Runner) -> None:
    truth = generate(llama, PROMPT, 24, sampling=MANNERS["both"])
    readmission = admit(3, PROMPT + truth[:10], MANNERS["both"], num_prompt_tokens=25)
    parts = {"admissions": [readmission], "windows": [WindowUpdate(3, 8, truth[8:])]}
    rows = [PlannedRow(3, 35, 6, blocks_of(3))]
    (row,) = run(llama, plan_rows(1, rows, released_slots=[0], **parts))
    assert row.token_ids == truth[10:17]
    assert row.length == 25 + 17


def test_errors_stay_with_their_row(llama: Runner) -> None:
    expected = generate(llama, PROMPT, 1)
    llama.release_all()
    bias = SamplingParams(logit_bias={VOCAB_SIZE: 1.0})
    faults = {
        f"token_ids: {VOCAB_SIZE} is not": admit(1, [5, VOCAB_SIZE]),
        "token_ids: -1 is not": admit(2, [5, -1]),
        "token_ids must not be empty": admit(3, []),
        "num_prompt_tokens must be in 1 to 2, not 3": admit(4, [5, 6], num_prompt_tokens=3),
        "temperature must be": admit(5, [5], SamplingParams(temperature=float("nan"))),
        f"logit_bias: token id {VOCAB_SIZE}": admit(6, [5], bias),
        "num_logprobs must be in 0 to 20, not 21": admit(9, [5], SamplingParams(num_logprobs=21)),
        "cached_blocks: 16 tokens are cached, but at most 15 of": admit(
            10, [5] * 16, cached_blocks=[0]
        ),
        "max_length must be in 0 to 400, not 401": admit(11, [5], max_length=401),
        "token_ids: 9 tokens leave no room for another within": admit(12, [5] * 9, max_length=9),
        "min_length must be at least 0, not -1": admit(13, [5], min_length=-1),
        "400 tokens leave no room for another within max_length": admit(14, [5] * 400),
    }
    slots = [8, *(admission.slot for admission in faults.values())]
    rows = [PlannedRow(slot, 25, 2, blocks_of(slot, 4)) for slot in slots]
    rows += [PlannedRow(7, 25, 0, [60]), PlannedRow(0, 25, 0, blocks_of(0))]
    admissions = [admit(0, PROMPT), *faults.values(), admit(7, PROMPT)]
    *bad, good = run(llama, plan_rows(1, admissions=admissions, rows=rows))
    for row, words in zip(bad, ["slot 8 holds no request", *faults, "too few blocks"], strict=True):
        assert words in (row.error or "")
        assert row.token_ids == []
    assert (good.error, good.token_ids) == (None, expected)


def test_logits_that_are_not_numbers_fail_their_row_alone(llama: Runner) -> None:
    expected = generate(llama, PROMPT, 6)
    llama.release_all()
    rows = [PlannedRow(slot, 25, 0, blocks_of(slot)) for slot in (0, 1)]
    run(llama, plan_rows(1, rows, admissions=[admit(0, PROMPT), admit(1, PROMPT)]))
    key = llama.engine.state.pool.keys[0][blocks_of(1)[0] * BLOCK_SIZE]
    kept = key.clone()
    key.fill_(float("nan"))
    bad, good = run(llama, plan_rows(2, rows=[PlannedRow(1, 1, 0, []), PlannedRow(0, 1, 0, [])]))
    key.copy_(kept)
    assert bad.error == "the model's logits are not finite"
    assert (bad.token_ids, bad.length) == ([], 26)
    assert (good.error, good.token_ids) == (None, expected[1:2])
    # Nothing of the failed pass was kept: the row runs again once its memory is sound.
    assert go_on(llama, slot=1).token_ids == expected[1:2]


def no_memory(*_: object, **__: object) -> None:
    raise RuntimeError("not enough memory:\n for this")


def test_a_failing_pass_ends_its_rows_and_not_the_worker(
    llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(llama.engine.model.module, "forward", no_memory)
        row = begin(llama, PROMPT)
    assert row.error is not None
    assert "not enough memory" in row.error
    assert "\n" not in row.error
    (row,) = run(llama, plan_rows(2, rows=[PlannedRow(0, 25, 0, [])]))
    assert (row.error, len(row.token_ids)) == (None, 1)


def test_a_request_that_cannot_be_prepared_fails_alone(
    llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three the first cannot be admitted, and the second has a window that cannot be set."""
    expected = generate(llama, PROMPT, 1)
    llama.release_all()
    biased = admit(1, PROMPT, SamplingParams(logit_bias={9: 1.5}))
    rows = [PlannedRow(slot, 25, 0, blocks_of(slot)) for slot in (1, 2, 0)]
    admissions = [biased, admit(2, PROMPT), admit(0, PROMPT)]
    windows = [WindowUpdate(slot, 0, [4, 5]) for slot in (2, 0)]
    set_windows = llama.engine.state.windows.set

    def set_those_of_slot_0(updates: Sequence[WindowUpdate]) -> None:
        if any(update.slot for update in updates):
            no_memory()
        set_windows(updates)

    with monkeypatch.context() as patch:
        patch.setattr(llama.engine.state.sampling, "_set_bias", no_memory)
        patch.setattr(llama.engine.state.windows, "set", set_those_of_slot_0)
        plan = plan_rows(1, rows, admissions=admissions, windows=windows)
        first, second, good = run(llama, plan)
    assert first.error == "it cannot be admitted: not enough memory: for this"
    assert second.error == "its window cannot be set: not enough memory: for this"
    assert (first.token_ids, first.length) == (second.token_ids, second.length) == ([], 25)
    assert (good.error, good.token_ids) == (None, expected)
    again = plan_rows(2, rows[:1], released_slots=[1], admissions=[biased])
    (row,) = run(llama, again)
    assert (row.error, len(row.token_ids)) == (None, 1)


def test_a_request_that_cannot_be_admitted_to_a_lost_device_is_not_at_fault(
    llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose() -> None:
        raise DeviceLostError("gone")

    monkeypatch.setattr(llama.engine.state.table, "admit", no_memory)
    monkeypatch.setattr(llama.engine.executor, "check_device", lose)
    with pytest.raises(DeviceLostError, match="gone"):
        run(llama, plan_rows(1, admissions=[admit(0, PROMPT)]))


def test_a_taken_slot_is_refused(llama: Runner) -> None:
    run(llama, plan_rows(1, admissions=[admit(0, PROMPT)]))
    with pytest.raises(PlanError, match=r"admissions\.slot: 0 is held by request request-0"):
        run(llama, plan_rows(2, admissions=[admit(0, PROMPT)]))
    assert run(llama, plan_rows(3, released_slots=[0], admissions=[admit(0, PROMPT)])) == []
