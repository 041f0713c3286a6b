import torch

from optimist_worker.core.drafts import Drafts, no_drafts

PARENTS = [[-1, 0, 1, 2], [-1, 0, 1, 0], [-1, -1, 0, 2]]


def trees(number: list[int]) -> Drafts:
    zeros = torch.zeros(len(number), dtype=torch.int64)
    tokens = torch.arange(4 * len(number)).view(-1, 4)
    parents = torch.tensor(PARENTS[: len(number)])
    probabilities = torch.rand(len(number), 4, 5)
    return Drafts(tokens, torch.tensor(number), zeros, parents, probabilities=probabilities)


def test_depths_are_counted_from_the_top() -> None:
    assert trees([4, 4, 4]).depths.tolist() == [[1, 2, 3, 4], [1, 2, 3, 2], [1, 1, 2, 3]]
    chain = Drafts(torch.zeros(2, 3).long(), torch.tensor([3, 1]), torch.zeros(2).long())
    assert chain.depths.tolist() == [[1, 2, 3]] * 2
    assert no_drafts(2, torch.device("cpu")).depths.shape == (2, 0)


def test_only_nodes_make_a_tree() -> None:
    assert trees([4, 4, 4]).is_tree.tolist() == [False, True, True]
    assert trees([4, 3, 1]).is_tree.tolist() == [False, False, False]
    assert no_drafts(2, torch.device("cpu")).is_tree.tolist() == [False, False]


def test_what_is_after_the_widest_row_is_left_out() -> None:
    drafts = trees([2, 3, 1])
    assert drafts.trim(4) is drafts
    assert drafts.depths.shape == (3, 4)
    trimmed = drafts.trim(3)
    assert trimmed.token_ids.tolist() == [[0, 1, 2], [4, 5, 6], [8, 9, 10]]
    assert trimmed.parents is not None
    assert trimmed.parents.tolist() == [parents[:3] for parents in PARENTS]
    assert trimmed.probabilities is not None
    assert trimmed.probabilities.shape == (3, 3, 5)
    assert trimmed.depths.shape == (3, 3)
    chain = Drafts(torch.zeros(2, 3).long(), torch.tensor([1, 0]), torch.zeros(2).long())
    assert (chain.trim(1).width, chain.trim(1).parents) == (1, None)
