import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance import rules
from optimist_worker.core.acceptance.rules import verify_coupled
from optimist_worker.core.acceptance.verdict import AcceptanceRule, VerifyPass
from optimist_worker.core.drafts import Drafts, lay_out
from tests.worker.acceptance.test_sampling_table import table_of
from tests.worker.drafters.markov import Rows, draft, generate, nothing_drafted, random_logits

VOCAB_SIZE = 7
TARGET = random_logits(VOCAB_SIZE, 1)
NEAR = TARGET + random_logits(VOCAB_SIZE, 2, 0.5)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, presence_penalty=0.4)
SHAPES = {"chain": (-1, 0, 1, 2), "tree": (-1, -1, 0, 0, 1, -1, 2, 6)}


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", [None, AcceptanceRule.COUPLED, AcceptanceRule.REJECTION])
def test_the_text_does_not_depend_on_what_was_drafted(
    rule: AcceptanceRule | None, shape: str, params: SamplingParams
) -> None:
    truth = generate(Rows(TARGET, params, 200), nothing_drafted, verify_coupled, 6)
    for logits in (TARGET, NEAR, random_logits(VOCAB_SIZE, 3)):
        rows = Rows(TARGET, params, 200)
        drafts = lambda rows, logits=logits: draft(rows, SHAPES[shape], logits, rule)  # noqa: E731
        assert torch.equal(generate(rows, drafts, verify_coupled, 6), truth)


def test_drafters_with_the_same_noise_agree_more_often() -> None:
    accepted = {}
    for rule in (AcceptanceRule.COUPLED, AcceptanceRule.REJECTION, None):
        rows = Rows(TARGET, SamplingParams(temperature=4.0), 3000)
        verdict = verify_coupled(rows.verify_pass(draft(rows, (-1,), NEAR, rule)))
        accepted[rule] = float(verdict.num_accepted.double().mean())
    assert accepted[AcceptanceRule.COUPLED] > accepted[None] + 0.2
    assert accepted[AcceptanceRule.COUPLED] > accepted[AcceptanceRule.REJECTION] + 0.3


def hand_made_pass(logits: Tensor, drafts: Drafts, emits: list[bool], padding: int) -> VerifyPass:
    """A pass of greedy rows."""
    emitting = torch.tensor(emits)
    lengths = torch.where(emitting, 1 + drafts.num_tokens, 0)
    table = table_of(*[SamplingParams()] * len(emits), vocab_size=logits.shape[-1])
    slots = torch.arange(len(emits))
    return VerifyPass(
        logits=torch.cat([logits, torch.full((padding, logits.shape[-1]), math.nan)]),
        nodes=lay_out(lengths, len(logits) + padding),
        drafts=drafts,
        slots=slots,
        num_tokens=torch.full_like(slots, 5),
        num_prompt_tokens=torch.full_like(slots, 5),
        token_ids=torch.zeros((len(emits) + 1, 8), dtype=torch.int32),
        sampling=table,
        needs=table.needs(slots.tolist()),
    )


def one_hot_logits(token_ids: list[int]) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(token_ids), VOCAB_SIZE).float()


def test_rows_of_all_kinds_share_a_pass() -> None:
    drafts = Drafts(
        token_ids=torch.tensor([[1, 2, 3], [0, 0, 0], [4, 5, 99], [0, 0, 0]]),
        num_tokens=torch.tensor([3, 0, 2, 0]),
        sources=torch.zeros(4, dtype=torch.int64),
    )
    logits = one_hot_logits([1, 2, 6, 4, 4, 5, 3, 2])
    verdict = verify_coupled(hand_made_pass(logits, drafts, [True, False, True, True], 3))
    assert verdict.num_accepted.tolist() == [2, 0, 2, 0]
    assert verdict.token_ids[0].tolist() == [1, 2, 6, 0]
    assert verdict.token_ids[2].tolist() == [4, 5, 3, 0]
    assert verdict.token_ids[3, 0] == 2
    assert verdict.path is None
    assert verdict.is_finite.all()


def test_a_path_through_a_tree_is_reported() -> None:
    drafts = Drafts(
        token_ids=torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]),
        num_tokens=torch.tensor([5, 3]),
        sources=torch.zeros(2, dtype=torch.int64),
        parents=torch.tensor([[-1, -1, 1, 1, 3], [-1, -1, 1, 1, 3]]),
        max_siblings=2,
    )
    # After node -1 comes 2, after node 1 comes 4, after node 3 comes 5, after node 4 comes 6.
    first, second = [2, 0, 4, 0, 5, 6], [2, 0, 4, 0]
    verdict = verify_coupled(hand_made_pass(one_hot_logits(first + second), drafts, [True] * 2, 0))
    assert verdict.num_accepted.tolist() == [3, 1]
    assert verdict.path is not None
    assert verdict.path.tolist() == [[1, 3, 4, 0, 0], [1, 0, 0, 0, 0]]
    assert verdict.token_ids[0, :4].tolist() == [2, 4, 5, 6]
    assert verdict.token_ids[1, :2].tolist() == [2, 4]


def test_a_pass_may_need_no_logits() -> None:
    none = torch.zeros(2, dtype=torch.int64)
    drafts = Drafts(torch.zeros((2, 3), dtype=torch.int64), none, none)
    verdict = verify_coupled(hand_made_pass(torch.zeros(0, VOCAB_SIZE), drafts, [False] * 2, 0))
    assert verdict.num_accepted.tolist() == [0, 0]
    assert verdict.is_finite.all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_spoil_their_row_alone(bad: float) -> None:
    drafts = Drafts(torch.tensor([[1], [1], [1]]), torch.ones(3).long(), torch.zeros(3).long())
    logits = one_hot_logits([1, 2] * 3)
    logits[3, 4] = bad
    verdict = verify_coupled(hand_made_pass(logits, drafts, [True] * 3, 1))
    assert verdict.is_finite.tolist() == [True, False, True]
    assert verdict.num_accepted.tolist() == [1, 0, 1]


def test_drafts_beyond_the_vocabulary_are_wrong() -> None:
    drafts = Drafts(
        torch.tensor([[VOCAB_SIZE, 1], [-1, 1]]), torch.full((2,), 2), torch.zeros(2).long()
    )
    verdict = verify_coupled(hand_made_pass(one_hot_logits([1] * 6), drafts, [True] * 2, 0))
    assert verdict.num_accepted.tolist() == [0, 0]
    assert verdict.token_ids[:, 0].tolist() == [1, 1]


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_only_allowed_tokens_are_emitted(params: SamplingParams) -> None:
    rows = Rows(TARGET, params, 300)
    verify = rows.verify_pass(draft(rows, SHAPES["tree"], NEAR, None))
    generator = torch.Generator().manual_seed(1)
    allowed = torch.rand(verify.logits.shape, generator=generator) < 0.4
    allowed[:, 3] = True
    verdict = verify_coupled(replace(verify, allowed=allowed))
    by_row = allowed.view(300, -1, VOCAB_SIZE)
    assert verdict.path is not None
    path = torch.nn.functional.pad(verdict.path + 1, (1, 0))
    for row in range(300):
        for number in range(int(verdict.num_accepted[row]) + 1):
            assert by_row[row, path[row, number], verdict.token_ids[row, number]]
    everything = verify_coupled(replace(verify, allowed=torch.ones_like(allowed)))
    assert torch.equal(everything.token_ids, verify_coupled(verify).token_ids)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**31),
    st.lists(st.integers(0, 12), min_size=1, max_size=5),
    st.booleans(),
)
def test_looking_first_changes_nothing(seed: int, widths: list[int], is_tree: bool) -> None:
    """What is left out because it is not reached would not have been emitted."""
    generator = torch.Generator().manual_seed(seed)
    number, most = len(widths), max(widths)
    kinds = [SamplingParams(), SAMPLED, SamplingParams(temperature=0.3, seed=seed)]
    table = table_of(*(kinds[slot % 3] for slot in range(number)), vocab_size=3)
    parents = torch.arange(-1, most - 1).expand(number, -1)
    if is_tree:
        # Siblings are at most two and differ, because even and odd nodes have other tokens.
        parents = (parents // 2).clamp(min=-1)
    token_ids = torch.randint(0, 2, (number, most), generator=generator)
    token_ids = torch.where(torch.arange(most) % 2 == 0, token_ids, 2)
    nodes = lay_out(1 + torch.tensor(widths), number + sum(widths) + 2)
    verify = VerifyPass(
        logits=torch.randn(nodes.size, 3, generator=generator) * 2,
        nodes=nodes,
        drafts=Drafts(
            token_ids,
            torch.tensor(widths),
            torch.zeros(number).long(),
            parents if is_tree else None,
            3,
        ),
        slots=torch.arange(number),
        num_tokens=torch.full((number,), 4),
        num_prompt_tokens=torch.full((number,), 2),
        token_ids=torch.randint(0, 3, (number + 1, 9), generator=generator).int(),
        sampling=table,
        needs=table.needs(list(range(number))),
    )
    lazy = verify_coupled(verify)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "_may_read", lambda tensor: False)
        patch.setattr(rules, "_SCORES_AT_ONCE", 7)
        eager = verify_coupled(verify)
    assert torch.equal(lazy.token_ids, eager.token_ids)
    assert torch.equal(lazy.num_accepted, eager.num_accepted)
