import pytest
import torch

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.rules import verify_synthetic
from optimist_worker.core.drafts import Drafts
from tests.worker.acceptance.test_coupled import VOCAB_SIZE, hand_made_pass, one_hot_logits
from tests.worker.drafters.markov import Rows, draft, random_logits

TARGET = random_logits(VOCAB_SIZE, 1)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.85, 1.0])
@pytest.mark.parametrize("shape", [(-1, 0, 1, 2), (-1, -1, 0, 0, 2)])
@pytest.mark.parametrize("logits", [TARGET, -TARGET], ids=["right", "wrong"])
def test_as_many_are_accepted_as_was_asked_for(
    logits: torch.Tensor, shape: tuple[int, ...], rate: float
) -> None:
    rows = Rows(TARGET, SamplingParams(), 20_000)
    verdict = verify_synthetic(rows.verify_pass(draft(rows, shape, logits, None)), rate)
    depth = 4 if shape[1] == 0 else 3
    for number in range(1, depth + 1):
        share = (verdict.num_accepted >= number).double().mean().item()
        assert share == pytest.approx(rate**number, abs=0.015)
    assert int(verdict.num_accepted.max()) <= depth


def test_accepted_are_first_children_and_behind_them_comes_the_likeliest() -> None:
    rows = Rows(TARGET, SamplingParams(), 200)
    drafts = draft(rows, (-1, -1, 0, 0, 2), random_logits(VOCAB_SIZE, 5), None)
    verdict = verify_synthetic(rows.verify_pass(drafts), 0.6)
    assert verdict.path is not None
    for row in range(200):
        number = int(verdict.num_accepted[row])
        assert verdict.path[row, :number].tolist() == [0, 2, 4][:number]
        before = drafts.token_ids[row, verdict.path[row, number - 1]] if number else None
        last = int(rows.last_tokens()[row]) if before is None else int(before)
        assert verdict.token_ids[row, number] == TARGET[last].argmax()


def test_the_same_pass_gets_the_same_verdict() -> None:
    rows = Rows(TARGET, SamplingParams(), 50)
    verify = rows.verify_pass(draft(rows, (-1, 0, 1), TARGET, None))
    first, second = verify_synthetic(verify, 0.5), verify_synthetic(verify, 0.5)
    assert torch.equal(first.num_accepted, second.num_accepted)


def test_neither_bad_logits_nor_bad_drafts_are_accepted() -> None:
    drafts = Drafts(
        torch.tensor([[1, 2], [1, VOCAB_SIZE], [1, 2]]),
        torch.tensor([2, 2, 1]),
        torch.zeros(3, dtype=torch.int64),
    )
    logits = one_hot_logits([3] * 8)
    logits[0, 0] = float("nan")
    verdict = verify_synthetic(hand_made_pass(logits, drafts, [True] * 3, 2), 1.0)
    assert verdict.is_finite.tolist() == [False, True, True]
    assert verdict.num_accepted.tolist() == [0, 1, 1]
    assert verdict.token_ids[1, :2].tolist() == [1, 3]
