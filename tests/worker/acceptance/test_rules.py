"""By each rule, texts are right whatever was drafted, and what is wrong spoils its row alone."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance import rules
from optimist_worker.core.acceptance.rules import verify_coupled, verify_rejection
from optimist_worker.core.acceptance.verdict import (
    AcceptanceRule,
    LateTokens,
    RowFailure,
    Verdict,
    VerifyPass,
)
from optimist_worker.core.drafts import Drafts, lay_out
from tests.worker.acceptance.test_sampling_table import table_of
from tests.worker.drafters.markov import (
    PROMPT,
    Judge,
    Rows,
    draft,
    generate,
    nothing_drafted,
    random_logits,
)

VOCAB_SIZE = 7
TARGET = random_logits(VOCAB_SIZE, 1)
NEAR = TARGET + random_logits(VOCAB_SIZE, 2, 0.5)
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)
CUT = SamplingParams(temperature=1.0, top_p=0.95, presence_penalty=0.4)
CHAIN, TREE = (-1, 0, 1, 2), (-1, -1, 0, 0, 1, -1, 2, 6)
RULES = (None, AcceptanceRule.COUPLED, AcceptanceRule.REJECTION)
JUDGES = (verify_coupled, verify_rejection)


def hand_made_pass(
    logits: Tensor, drafts: Drafts, params: SamplingParams = GREEDY, padding: int = 0
) -> VerifyPass:
    """A pass of rows with the same parameters."""
    number = drafts.num_rows
    table = table_of(*[params] * number, vocab_size=VOCAB_SIZE)
    slots = torch.arange(number)
    return VerifyPass(
        logits=torch.cat([logits, torch.full((padding, VOCAB_SIZE), math.nan)]),
        nodes=lay_out(1 + drafts.num_tokens, len(logits) + padding),
        drafts=drafts,
        slots=slots,
        num_tokens=torch.full_like(slots, 5),
        num_prompt_tokens=torch.full_like(slots, 5),
        token_ids=torch.zeros((number + 1, 8), dtype=torch.int32),
        sampling=table,
        needs=table.needs(slots.tolist()),
    )


def draw(
    num_rows: int, shape: tuple[int, ...], logits: Tensor = NEAR, params: SamplingParams = SAMPLED
) -> tuple[Rows, Drafts, Verdict]:
    """Draws drafts for the rule of rejection; returns them, and what becomes of them."""
    rows = Rows(TARGET, params, num_rows)
    drafts = draft(rows, shape, logits, AcceptanceRule.REJECTION)
    return rows, drafts, verify_rejection(rows.verify_pass(drafts))


def one_hot_logits(token_ids: list[int]) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(token_ids), VOCAB_SIZE).float()


@pytest.mark.parametrize("ahead", [1, 2**17], ids=["one level", "all levels"])
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize(
    ("judge", "params", "rule"),
    [
        *((verify_coupled, params, rule) for params in (GREEDY, CUT) for rule in RULES),
        *((verify_rejection, GREEDY, rule) for rule in RULES),
        (verify_rejection, SamplingParams(presence_penalty=0.7, logit_bias={2: 1.0}), None),
    ],
)
def test_the_text_does_not_depend_on_what_was_drafted(
    judge: Judge,
    params: SamplingParams,
    rule: AcceptanceRule | None,
    shape: tuple[int, ...],
    ahead: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "_CACHED_SCORES", ahead)
    truth = generate(Rows(TARGET, params, 200), nothing_drafted, verify_coupled, 6)
    for logits in (TARGET, NEAR, random_logits(VOCAB_SIZE, 3)):
        drafts = lambda rows, logits=logits: draft(rows, shape, logits, rule)  # noqa: E731
        assert torch.equal(generate(Rows(TARGET, params, 200), drafts, judge, 6), truth)


LATE = [2, 4, 2]
"""One of them is what the greedy text goes on with."""


def late_rows(params: SamplingParams, *, number: int = 200) -> Rows:
    """Rows of which every second may not choose some tokens among its first four."""
    rows = Rows(TARGET, params, number)
    least = torch.tensor([len(PROMPT) + 4, 0]).repeat(number // 2)
    rows.late_tokens = LateTokens(torch.tensor(LATE).expand(number, -1), least)
    return rows


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("params", [GREEDY, CUT], ids=["greedy", "sampled"])
def test_late_tokens_are_not_chosen_early_at_any_node(
    params: SamplingParams, shape: tuple[int, ...]
) -> None:
    free = generate(Rows(TARGET, params, 200), nothing_drafted, verify_coupled, 6)
    truth = generate(late_rows(params), nothing_drafted, verify_coupled, 6)
    is_late = torch.isin(truth, torch.tensor(LATE))
    assert not is_late[::2, :4].any()
    assert is_late[::2, 4:].any()
    assert torch.isin(free[:, :4], torch.tensor(LATE)).any()
    assert torch.equal(truth[1::2], free[1::2])
    for logits in (TARGET, NEAR):
        drafts = partial(draft, parents=shape, logits=logits, rule=AcceptanceRule.COUPLED)
        assert torch.equal(generate(late_rows(params), drafts, verify_coupled, 6), truth)
    # The other rules have another text, and no late token either.
    for judge in JUDGES[1:]:
        drafts = partial(draft, parents=shape, logits=NEAR, rule=AcceptanceRule.REJECTION)
        output = generate(late_rows(params), drafts, judge, 6)
        assert not torch.isin(output[::2, :4], torch.tensor(LATE)).any()


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("has_tree", [False, True])
def test_where_no_token_may_come_next_the_text_ends_before(
    judge: Judge, params: SamplingParams, has_tree: bool
) -> None:
    """A draft after which nothing may come is not accepted; its row comes without it."""
    parents = torch.tensor([[-1, 0]] * 3) if has_tree else None
    two = torch.full((3,), 2)
    drafts = Drafts(torch.tensor([[1, 2]] * 3), two, torch.zeros(3).long(), parents)
    verify = hand_made_pass(one_hot_logits([1, 2, 3] * 3) * 500, drafts, params, padding=1)
    verify.allowed = torch.ones_like(verify.logits).bool()
    # After the first draft of the second row, and after the last known token of the third.
    verify.allowed[[4, 6]] = False
    verdict = judge(verify)
    assert verdict.failures().tolist() == [0, 0, RowFailure.STUCK]
    assert verdict.num_accepted.tolist() == [2, 0, 0]
    assert verdict.token_ids[0].tolist() == [1, 2, 3]
    assert verdict.token_ids[1, 0] == 1


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_spoil_their_row_alone(bad: float, judge: Judge) -> None:
    drafts = Drafts(torch.tensor([[1], [1], [1]]), torch.ones(3).long(), torch.zeros(3).long())
    logits = one_hot_logits([1, 2] * 3)
    logits[3, 4] = bad
    verdict = judge(hand_made_pass(logits, drafts, padding=1))
    assert verdict.failures().tolist() == [0, RowFailure.NOT_FINITE, 0]
    assert verdict.num_accepted.tolist() == [1, 0, 1]
    assert verdict.token_ids[[0, 2]].tolist() == [[1, 2]] * 2


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_beyond_the_vocabulary_are_wrong(params: SamplingParams, judge: Judge) -> None:
    token_ids = torch.tensor([[VOCAB_SIZE, 1], [-1, 1], [1, VOCAB_SIZE]])
    drafts = Drafts(token_ids, torch.full((3,), 2), torch.zeros(3).long())
    verdict = judge(hand_made_pass(one_hot_logits([1] * 9) * 500, drafts, params))
    assert verdict.num_accepted.tolist() == [0, 0, 1]
    assert verdict.token_ids[:, 0].tolist() == [1, 1, 1]
    assert verdict.token_ids[2, 1] == 1


def test_greedy_and_sampled_rows_share_a_pass() -> None:
    rows = Rows(TARGET, SAMPLED, 100)
    verify = rows.verify_pass(draft(rows, TREE, NEAR, AcceptanceRule.REJECTION))
    columns = rows.table.gather(rows.slots)
    is_greedy = rows.slots % 2 == 0

    def gather(slots: torch.Tensor) -> object:
        samples = ~is_greedy[slots]
        return type(columns)(*(column[slots] for column in columns))._replace(samples=samples)

    verify.sampling.gather = gather  # type: ignore[method-assign, assignment]
    mixed = verify_rejection(verify)
    greedy = generate(Rows(TARGET, SamplingParams(), 1), nothing_drafted, verify_coupled, 1)
    assert (mixed.token_ids[is_greedy, 0] == greedy[0, 0]).all()
    assert not (mixed.token_ids[~is_greedy, 0] == greedy[0, 0]).all()


def test_drafts_from_the_target_itself_are_all_accepted() -> None:
    _, _, verdict = draw(2000, CHAIN, TARGET)
    assert (verdict.num_accepted == len(CHAIN)).all()


def test_acceptance_is_as_likely_as_can_be() -> None:
    """Sum of min(p, q) over the tokens (Leviathan et al., 2023)."""
    rows, _, verdict = draw(20_000, (-1,))
    last = int(rows.last_tokens()[0])
    best = float(torch.minimum(TARGET[last].softmax(-1), NEAR[last].softmax(-1)).sum())
    assert verdict.num_accepted.double().mean().item() == pytest.approx(best, abs=0.012)


def test_siblings_make_acceptance_likelier() -> None:
    rates = []
    for shape in ((-1,), (-1, -1), (-1, -1, -1), (-1,) * VOCAB_SIZE):
        _, _, verdict = draw(4000, shape, random_logits(VOCAB_SIZE, 3))
        rates.append(verdict.num_accepted.double().mean().item())
    assert rates == sorted(rates)
    assert rates[-1] == 1.0


def test_siblings_that_are_not_looked_at_may_still_be_emitted() -> None:
    rows, drafts, _ = draw(500, (-1, -1, -1))
    verdict = verify_rejection(rows.verify_pass(replace(drafts, max_siblings=1)))
    assert verdict.path is not None
    accepted = verdict.num_accepted == 1
    nodes = verdict.path[accepted, 0]
    assert set(nodes.tolist()) == {0, 1, 2}
    tokens = drafts.token_ids[accepted].gather(1, nodes[:, None])[:, 0]
    assert torch.equal(tokens, verdict.token_ids[accepted, 0])


def test_more_siblings_than_tokens_with_a_chance_are_certain() -> None:
    params = SamplingParams(temperature=1.0, top_k=2)
    rows, drafts, verdict = draw(1000, (-1, -1, -1, -1), params=params)
    assert drafts.probabilities is not None
    torch.testing.assert_close(drafts.probabilities.sum(-1), torch.ones(1000, 4))
    assert (drafts.probabilities.gather(2, drafts.token_ids[:, :, None]) > 0).all()
    allowed = TARGET[int(rows.last_tokens()[0])].topk(2).indices
    assert torch.isin(verdict.token_ids[:, 0], allowed).all()


def test_rounding_cannot_empty_what_is_left() -> None:
    """The draft's distribution is above the target's everywhere but where both are 0."""
    rows, drafts, _ = draw(1, (-1, -1), TARGET)
    assert drafts.probabilities is not None
    too_much = replace(drafts, probabilities=torch.full_like(drafts.probabilities, 1e6))
    verdict = verify_rejection(rows.verify_pass(too_much))
    assert 0 <= verdict.token_ids[0, 0] < VOCAB_SIZE
