import torch

from optimist_training.data.examples import Batch, Example
from optimist_training.drafters.acceptance import measure
from optimist_training.drafters.target import Lesson

VOCAB = 50


class CountingTarget:
    """Says the number after each token."""

    def teach(self, batch: Batch, layers: object) -> Lesson:
        said = (batch.token_ids + 1) % VOCAB
        empty = torch.zeros(*batch.token_ids.shape, 1)
        return Lesson(batch.token_ids, batch.wanted, empty, empty, empty, said)


class Drafter:
    """Is right at the given places of a chain, wherever the chain starts."""

    layers = None

    def __init__(self, *right: bool) -> None:
        self.right = torch.tensor(right)

    def agreement(self, lesson: Lesson, depth: int) -> torch.Tensor:
        return self.right[:depth].expand(*lesson.said.shape, -1)


def counted(*right: bool, tokens: list[int] | None = None, prompt: int = 3) -> list[int]:
    example = Example(list(range(23)) if tokens is None else tokens, prompt)
    (result,) = measure(Drafter(*right), CountingTarget(), [example], (len(right),))  # type: ignore[arg-type]
    return [result.num_passes, result.num_drafted, result.num_accepted]


def test_every_pass_emits_the_accepted_drafts_and_one_token() -> None:
    # Of 20 answer tokens the prefill emits the first: three passes of 4 + 1 and one of the last 4.
    assert counted(True, True, True, True) == [4, 16, 16]


def test_a_chain_ends_at_the_first_wrong_draft() -> None:
    passes, drafted, accepted = counted(True, False, True, True)
    # Two tokens a pass, and the last draft of all is accepted too.
    assert (passes, accepted) == (10, 10)
    assert drafted == 8 * 4 + 3 + 1


def test_nothing_is_accepted_from_a_drafter_that_is_always_wrong() -> None:
    passes, _, accepted = counted(False, False)
    assert (passes, accepted) == (19, 0)


def test_a_chain_ends_where_the_target_says_something_else_than_the_data() -> None:
    tokens = [*range(8), 30, *range(31, 40)]
    every = counted(True, True, True, True, tokens=tokens)
    plain = counted(True, True, True, True, tokens=list(range(18)))
    assert every[0] == plain[0] + 1


def test_the_places_of_a_chain_are_counted_until_the_first_wrong_one() -> None:
    example = Example(list(range(23)), 3)
    (result,) = measure(Drafter(True, False, True), CountingTarget(), [example], (3,))  # type: ignore[arg-type]
    tried = [count for count, _ in result.by_depth]
    assert tried[2] == 0
    assert result.by_depth[0][1] == result.num_accepted
