import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_common.drafts import DraftSource
from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.batch.flat_batch import MOST_TREE_NODES
from optimist_worker.core.batch.window_table import WindowDrafts
from optimist_worker.core.plan import MOST_WINDOW_NODES, WindowUpdate
from tests.worker.batch.window_model import ModelWindow, Node
from tests.worker.tables import MAX_LEN, NUM_SLOTS, VOCAB, Tables, make_tables

PROMPT = [1, 2, 3]
CHAIN = [11, 12, 13, 14, 15, 16]
TOKENS = [11, 12, 21, 22, 13, 30]
PARENTS = [-1, 0, 0, 2, 1, -1]
"""11 (12 (13), 21 (22)), and 30."""


@pytest.fixture
def tables() -> Tables:
    tables = make_tables()
    tables.admit(1, PROMPT)
    return tables


def draft(tables: Tables, limits: dict[int, int], *, has_trees: bool = True) -> WindowDrafts:
    """Drafts for some slots with these limits."""
    slots, width = torch.tensor(list(limits)), max(1, *limits.values())
    limit = torch.tensor(list(limits.values()))
    return tables.windows.draft(slots, limit, width, has_trees=has_trees)


def nodes_of(drafted: WindowDrafts, row: int = 0) -> list[Node]:
    """What was drafted for a row."""
    drafts = drafted.drafts
    number = int(drafts.num_tokens[row])
    source = DraftSource.PREDICTION if number else DraftSource.TARGET
    assert drafts.sources[row] == source
    assert drafts.max_siblings == 1, "none of them is drawn by chance"
    parents = list(range(-1, number - 1))
    if drafts.parents is not None:
        assert int(drafts.parents.min()) >= -1
        assert int(drafts.parents.max()) < max(1, drafts.width)
        parents = drafts.parents[row, :number].tolist()
    return list(zip(drafts.token_ids[row, :number].tolist(), parents, strict=True))


def drafts(tables: Tables, limit: int = 20, *, has_trees: bool = True) -> list[Node]:
    """What is drafted for slot 1."""
    found = nodes_of(draft(tables, {1: limit}, has_trees=has_trees))
    number = int(tables.windows.count_left(torch.tensor([1])))
    assert len(found) == min(limit, number)
    return found


def texts(tables: Tables, limit: int = 20) -> list[int]:
    """What is drafted of a chain; the same whichever way it is drafted."""
    found = drafts(tables, limit, has_trees=False)
    assert found == drafts(tables, limit)
    assert [parent for _, parent in found] == list(range(-1, len(found) - 1))
    return [token for token, _ in found]


def set_window(
    tables: Tables, tokens: list[int], base: int = 0, parents: list[int] | None = None
) -> None:
    tables.windows.set(WindowUpdate(1, base, tokens, parents or []))


def test_drafts_are_what_the_window_has_ahead(tables: Tables) -> None:
    assert texts(tables) == []
    set_window(tables, CHAIN)
    assert texts(tables) == CHAIN
    assert texts(tables, 2) == CHAIN[:2]
    assert texts(tables, 0) == []
    tables.emit(1, [11, 12])
    assert texts(tables) == CHAIN[2:]
    tables.emit(1, CHAIN[2:])
    assert texts(tables) == []
    tables.emit(1, [11])
    assert texts(tables) == []


def test_a_contradicted_window_has_nothing_left(tables: Tables) -> None:
    set_window(tables, CHAIN)
    tables.emit(1, [11, 40])
    assert texts(tables) == []
    # What is emitted later cannot bring it back.
    tables.emit(1, [13, 11])
    assert texts(tables) == []


@pytest.mark.parametrize(
    ("base", "tokens", "expected"),
    [
        (0, [20, 21, 22, 23], [22, 23]),
        (1, [21, 22, 23], [22, 23]),
        (2, [22, 23], [22, 23]),
        (0, [20, 22, 22, 23], []),
        (3, [23], []),
        (4, [23], []),
        (2**31 - 1, [23], []),
        (0, [20, 21], []),
        (0, [20], []),
        (0, [], []),
        (2, [], []),
    ],
)
def test_a_window_that_was_made_before_is_compared_with_the_output(
    tables: Tables, base: int, tokens: list[int], expected: list[int]
) -> None:
    tables.emit(1, [20, 21])
    set_window(tables, tokens, base)
    assert texts(tables) == expected


def test_the_output_may_have_passed_a_chain_before_it_arrives(tables: Tables) -> None:
    tables.emit(1, [*CHAIN[:3], 40])
    set_window(tables, CHAIN)
    assert texts(tables) == []


def test_the_first_nodes_of_a_tree_are_drafted(tables: Tables) -> None:
    set_window(tables, TOKENS, 0, PARENTS)
    assert drafts(tables) == list(zip(TOKENS, PARENTS, strict=True))
    assert drafts(tables, 4) == [(11, -1), (12, 0), (21, 0), (22, 2)]
    assert drafts(tables, 1) == [(11, -1)]


def test_branches_that_are_not_taken_are_dropped(tables: Tables) -> None:
    set_window(tables, TOKENS, 0, PARENTS)
    tables.emit(1, [11])
    assert drafts(tables) == [(12, -1), (21, -1), (22, 1), (13, 0)]
    assert drafts(tables, 3) == [(12, -1), (21, -1), (22, 1)]
    tables.emit(1, [21])
    assert drafts(tables) == [(22, -1)]
    tables.emit(1, [13])
    assert drafts(tables) == []


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([11], [(12, -1), (21, -1), (22, 1), (13, 0)]),
        ([11, 12], [(13, -1)]),
        ([11, 21], [(22, -1)]),
        ([11, 22], []),
        ([12], []),
        ([30], []),
        ([11, 21, 22], []),
        ([11, 21, 22, 13], []),
    ],
)
def test_a_tree_may_come_late(tables: Tables, output: list[int], expected: list[Node]) -> None:
    tables.emit(1, output)
    set_window(tables, TOKENS, 0, PARENTS)
    assert drafts(tables) == expected


def test_a_tree_follows_what_was_accepted_of_it(tables: Tables) -> None:
    set_window(tables, TOKENS, 0, PARENTS)
    drafted = draft(tables, {1: 20})
    # The nodes 11 and 12 were right, and 13 would have been: it was said behind them.
    tables.settle([1], [([0, 1], 13)], drafted)
    assert drafts(tables) == []
    set_window(tables, TOKENS, 3, PARENTS)
    tables.settle([1], [([], 11)], draft(tables, {1: 20}))
    tables.settle([1], [([1], 22)], draft(tables, {1: 20}))
    assert drafts(tables) == []
    set_window(tables, [7, 8, 9, 10], 6, [-1, 0, 0, 2])
    tables.settle([1], [([0], 9)], draft(tables, {1: 1}))
    assert drafts(tables) == [(10, -1)]


@pytest.mark.parametrize("has_trees", [False, True])
def test_rows_that_emit_nothing_stay_where_they_are(tables: Tables, has_trees: bool) -> None:
    tables.admit(2, PROMPT)
    for slot in (1, 2):
        tables.windows.set(WindowUpdate(slot, 0, CHAIN))
    slots = torch.tensor([1, 2])
    drafted = draft(tables, {1: 3, 2: 3}, has_trees=has_trees)
    verdict = Verdict(
        token_ids=torch.tensor([[11, 12, 13, 14], [11, 12, 40, 0]]),
        num_accepted=torch.tensor([3, 2]),
        path=torch.tensor([[0, 1, 2]] * 2) if has_trees else None,
        is_finite=torch.tensor([True, False]),
    )
    # In the middle of a prompt, or because the logits are not finite.
    tables.windows.follow(slots, drafted.places, verdict, torch.tensor([4, 0]))
    assert tables.windows.count_left(slots).tolist() == [2, 6]


def test_what_a_drafter_got_accepted_does_not_bring_a_window_back(tables: Tables) -> None:
    for has_trees in (False, True):
        set_window(tables, [11, 12, 13, 12])
        tables.emit(1, [40])
        drafted = draft(tables, {1: 3}, has_trees=has_trees)
        assert nodes_of(drafted) == []
        tables.settle([1], [([0], 11)], drafted)
        assert texts(tables) == []


@pytest.mark.parametrize("outside", [-1, VOCAB, 2**31 - 1])
def test_nothing_is_offered_behind_tokens_outside_of_the_vocabulary(
    tables: Tables, outside: int
) -> None:
    set_window(tables, CHAIN)
    set_window(tables, [11, outside, 12])
    assert texts(tables) == [11]
    set_window(tables, [11, outside, 12, 13], 0, [-1, -1, 1, 0])
    assert drafts(tables) == [(11, -1), (13, 0)]
    tables.emit(1, [11, 12])
    assert drafts(tables) == []


def test_of_siblings_with_the_same_token_the_first_counts(tables: Tables) -> None:
    set_window(tables, [11, 11, 13, 14], 0, [-1, -1, 0, 1])
    assert drafts(tables) == [(11, -1), (13, 0)]


def test_a_tree_has_a_bit_for_every_node_and_a_chain_may_be_longer(tables: Tables) -> None:
    tokens = [i % VOCAB for i in range(MOST_WINDOW_NODES)]
    set_window(tables, tokens)
    assert texts(tables, 2 * MOST_WINDOW_NODES) == tokens
    parents = list(range(-1, MOST_WINDOW_NODES - 1))
    parents[-1] = 0
    set_window(tables, tokens, 0, parents)
    found = nodes_of(draft(tables, {1: 2 * MOST_WINDOW_NODES}))
    assert [token for token, _ in found] == tokens[:MOST_TREE_NODES]
    assert nodes_of(draft(tables, {1: MOST_TREE_NODES - 1})) == found[:-1]


def test_a_new_window_replaces_the_old_one(tables: Tables) -> None:
    set_window(tables, TOKENS, 0, PARENTS)
    set_window(tables, [41, 42])
    assert texts(tables) == [41, 42]
    tables.emit(1, [11, 12])
    assert drafts(tables) == []


def test_admission_and_clearing_forget_the_window(tables: Tables) -> None:
    set_window(tables, TOKENS, 0, PARENTS)
    tables.admit(1, PROMPT)
    assert drafts(tables) == []
    tables.emit(1, [11])
    assert drafts(tables) == []


def test_windows_of_other_slots_stay(tables: Tables) -> None:
    tables.admit(2, PROMPT)
    set_window(tables, CHAIN)
    tables.windows.set(WindowUpdate(2, 0, [44, 45], [-1, -1]))
    tables.emit(2, [45])
    assert texts(tables) == CHAIN


def test_padding_may_name_the_last_row_several_times(tables: Tables) -> None:
    set_window(tables, CHAIN)
    slots, limits = torch.tensor([NUM_SLOTS, 1, NUM_SLOTS]), torch.tensor([0, 3, 0])
    drafted = tables.windows.draft(slots, limits, 4, has_trees=True)
    assert [nodes_of(drafted, row) for row in (0, 2)] == [[], []]
    tables.settle(slots.tolist(), [([], 9), ([0], 12), ([], 8)], drafted)
    assert texts(tables) == CHAIN[2:]


SMALL_VOCAB = st.sampled_from([10, 11, 12, -1, VOCAB])


@st.composite
def updates(draw: st.DrawFn, slot: int, length: int) -> WindowUpdate:
    """A window near some place of the output, of few different tokens."""
    base = max(0, length + draw(st.integers(-3, 1)))
    tokens = draw(st.lists(st.sampled_from([10, 10, 11, 12]) | SMALL_VOCAB, max_size=14))
    parents: list[int] = []
    if draw(st.booleans()):
        parents = [draw(st.integers(max(-1, node - 4), node - 1)) for node in range(len(tokens))]
    return WindowUpdate(slot, base, tokens, parents)


class Comparison:
    """Two slots of a table, and what windows mean."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.tables = data, make_tables()
        self.models = {slot: ModelWindow(VOCAB) for slot in (0, 2)}
        for slot in self.models:
            self.tables.admit(slot, PROMPT)

    def run(self) -> None:
        """Takes a step after the other until the sequences are full."""
        while max(len(model.output) for model in self.models.values()) < MAX_LEN - 25:
            for slot, model in self.models.items():
                if self.data.draw(st.integers(0, 2)) == 0:
                    update = self.data.draw(updates(slot, len(model.output)))
                    model.set(update)
                    self.tables.windows.set(update)
            self.step()

    def step(self) -> None:
        """Drafts for the slots in some order, lets something be accepted of it, and goes on."""
        order = self.data.draw(st.permutations(list(self.models)))
        limits = {slot: self.data.draw(st.integers(0, 9)) for slot in order}
        trees = [model for model in self.models.values() if model.is_tree and model.left()]
        has_trees = bool(trees) or self.data.draw(st.booleans())
        drafted = draft(self.tables, limits, has_trees=has_trees)
        said, expected = [], []
        for row, slot in enumerate(order):
            model, nodes = self.models[slot], nodes_of(drafted, row)
            assert nodes == model.drafts(limits[slot])
            path = self._path(nodes)
            # Often what comes next in the window.
            behind = [token for token, parent in model.left() if parent == max(path, default=-1)]
            token = self.data.draw(st.sampled_from([*behind, *behind, 10, 11]))
            said.append((path, token))
            expected.append(model.find_nodes(path) if nodes else None)
            model.output += [*(nodes[node][0] for node in path), token]
        followed = self.tables.settle(order, said, drafted)
        for row, found in enumerate(expected):
            if found is not None:
                assert followed[row, : len(found)].tolist() == found
        for slot, model in self.models.items():
            (left,) = self.tables.windows.count_left(torch.tensor([slot])).tolist()
            assert left == len(model.left())

    def _path(self, nodes: list[Node]) -> list[int]:
        """Accepts some node, and so all above it."""
        node = self.data.draw(st.integers(-1, len(nodes) - 1))
        path = []
        while node >= 0:
            path.append(node)
            node = nodes[node][1]
        return path[::-1]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_windows_are_followed_as_they_are_meant(data: st.DataObject) -> None:
    Comparison(data).run()
