"""Stop tokens cannot be chosen below a request's least length, whoever drafts them."""

from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.plan import PlannedRow, RowLogprobs, WindowUpdate
from optimist_worker.runner.runner import Runner
from tests.stack import BUNDLED_MODEL
from tests.worker.drafters.drafting import SHAPES, drafting_runner
from tests.worker.step import admit, blocks_of, generate, plan_rows, rows_of, run

END = 3
LEAST = 8
"""Tokens before which nothing may stop."""
TOKENIZER = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
PROMPT = TOKENIZER.encode("def f(width): return width").ids
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, seed=4)
MANNERS = {
    "penalized": SamplingParams(presence_penalty=0.4, num_logprobs=5),
    "sampled": SAMPLED,
    # After one of them the only other token is the end.
    "grammar": SamplingParams(grammar="start: /[a-z]+/"),
    "sampled under a grammar": replace(SAMPLED, grammar="start: /[a-z]+( [0-9]+)*/"),
}


MOST = 12


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest) -> Runner:
    is_padded = getattr(request, "param", "") == "padded"
    return drafting_runner(BUNDLED_MODEL, "ngram", SHAPES["chain"], reads_sizes=not is_padded)


def answer(
    runner: Runner,
    sampling: SamplingParams,
    stops: list[int],
    drafts: list[int] | None = None,
    logprobs: list[RowLogprobs] | None = None,
    **options: Any,
) -> tuple[list[int], str | None]:
    """Generates until a stop, or `MOST` tokens; drafts are the text that is thought to come.

    Beside each draft stands a stop token.
    """
    options |= {"min_length": len(PROMPT) + LEAST, "stop_token_ids": stops}
    runner.release_all()
    admission = admit(0, PROMPT, sampling, **options)
    row = PlannedRow(0, len(PROMPT), 0, blocks_of(0))
    output: list[int] = []
    plan = plan_rows(1, [row], admissions=[admission])
    while True:
        result = runner.execute(plan)
        (got,) = rows_of(result)
        output += got.token_ids
        if logprobs is not None:
            logprobs += result.logprobs
        end = next((i + 1 for i, token in enumerate(output) if token in stops), MOST)
        if got.error is not None or len(output) >= end:
            # What is said after a stop is cut off by the scheduler.
            return output[:end], got.error
        windows = []
        if drafts is not None:
            tokens = [token for right in drafts[len(output) :][:4] for token in (stops[0], right)]
            parents = [max(-1, 2 * (node // 2) - 1) for node in range(len(tokens))]
            windows = [WindowUpdate(0, len(output), tokens, parents)]
        row = PlannedRow(0, 1, 0 if drafts is None else 8, [])
        plan = plan_rows(2, [row], windows=windows)


@pytest.mark.parametrize(
    ("runner", "name"),
    [
        ("exact", "penalized"),
        ("exact", "sampled under a grammar"),
        ("padded", "sampled"),
        ("padded", "grammar"),
    ],
    indirect=["runner"],
)
def test_stops_are_chosen_from_the_least_length_on(runner: Runner, name: str) -> None:
    sampling = MANNERS[name]
    free = generate(runner, PROMPT, 6, sampling=replace(sampling, grammar=""))
    # All that the model would say: it has to say something else.
    stops = [END, *dict.fromkeys(free)] if not sampling.grammar else [END]
    plain, error = answer(runner, sampling, stops)
    assert error is None
    assert len(plain) >= LEAST
    assert not {*plain[:LEAST]} & {*stops}
    for drafts in (plain, [*plain[:5], *free[:3], *plain[8:]]):
        logprobs: list[RowLogprobs] = []
        assert answer(runner, sampling, stops, drafts, logprobs) == (plain, None)
        assert bool(logprobs) == (sampling.num_logprobs is not None)


def test_many_stops_are_all_late(runner: Runner) -> None:
    stops = list(range(4, 4 + 200))
    wanted = SamplingParams(logit_bias={200: 1000.0, 203: 900.0})
    plain, _ = answer(runner, wanted, stops)
    assert len(plain) == LEAST + 1
    assert not {*plain[:LEAST]} & {*stops}
    assert plain[-1] == 200
    assert answer(runner, wanted, stops, plain) == (plain, None)
    assert answer(runner, wanted, [*range(257)])[1] == (
        "stop_token_ids: must be at most 256 with a min_length"
    )


def test_a_grammar_that_ends_too_soon_fails_its_request_alone(runner: Runner) -> None:
    sampling = SamplingParams(grammar='start: "width" | "height"')
    plain = answer(runner, sampling, [END])
    output, error = plain
    assert error == "min_tokens: the answer has to end before it has as many tokens"
    assert 0 < len(output) < LEAST
    assert END not in output
    for drafts in (output, [*output, END, END], [END] * 4):
        assert answer(runner, sampling, [END], drafts) == plain
    # Another request in the same plans does not notice.
    truth = generate(runner, PROMPT, 7)
    runner.release_all()
    late: dict[str, Any] = {"min_length": len(PROMPT) + LEAST, "stop_token_ids": [END]}
    admissions = [admit(0, PROMPT, sampling, **late), admit(1, PROMPT)]
    rows = [PlannedRow(slot, len(PROMPT), 0, blocks_of(slot)) for slot in (0, 1)]
    got = [run(runner, plan_rows(1, rows, admissions=admissions))]
    rows = [PlannedRow(slot, 1, 0, []) for slot in (0, 1)]
    got += [run(runner, plan_rows(2, rows)) for _ in range(6)]
    assert [token for _, row in got for token in row.token_ids] == truth
    assert got[-1][0].error == error


def test_rejection_accepts_no_stops_that_are_drafted_early() -> None:
    rule = AcceptanceRule.REJECTION
    runner = drafting_runner(BUNDLED_MODEL, "itself", SHAPES["fixed"], rule=rule)
    for sampling in (SamplingParams(), SAMPLED):
        free = generate(runner, PROMPT, 6, sampling=sampling)
        stops = [END, *free]
        output, error = answer(runner, sampling, stops, free)
        assert error is None
        assert not {*output[:LEAST]} & {*stops}
