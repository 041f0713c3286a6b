"""Windows, compared with what they mean, however the output goes on."""

from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_common.drafts import DraftSource
from optimist_worker.core.batch.flat_batch import MOST_TREE_NODES
from optimist_worker.core.batch.window_table import WindowDrafts
from optimist_worker.core.plan import WindowUpdate
from tests.worker.tables import MAX_LEN, VOCAB, Tables, make_tables

PROMPT = [1, 2, 3]
CHAIN = [11, 12, 13, 14, 15, 16]
Node = tuple[int, int]
"""Token and parent."""


def draft(tables: Tables, limits: dict[int, int], *, has_trees: bool = True) -> WindowDrafts:
    """Drafts for some slots with these limits."""
    slots, width = torch.tensor(list(limits)), max(1, *limits.values())
    limit = torch.tensor(list(limits.values()))
    return tables.windows.draft(slots, limit, limit, width, has_trees=has_trees)


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


@dataclass
class ModelWindow:
    """A slot's output, and the window that is compared with it from the start each time."""

    vocab_size: int
    output: list[int] = field(default_factory=list)
    update: WindowUpdate | None = None
    is_tree: bool = False

    def set(self, update: WindowUpdate) -> None:
        """Replaces the window, unless it begins behind what is known."""
        self.update = update if update.base <= len(self.output) else None
        self.is_tree = bool(update.parents)

    def left(self) -> list[Node]:
        """The nodes after the path that the output has taken, parents counted among them."""
        return [(token, parent) for _, token, parent in self._find_left()[1]]

    def find_nodes(self, path: list[int]) -> list[int]:
        """The node that the output is at, and nodes of a path of what is left, as sent."""
        at, left = self._find_left()
        return [at, *(left[node][0] for node in path)]

    def _find_left(self) -> tuple[int, list[tuple[int, int, int]]]:
        if self.update is None:
            return -1, []
        children = self._children(self.update)
        index = -1
        for token in self.output[self.update.base :]:
            if token not in children[index]:
                return -1, []
            index = children[index][token]
        parents = {node: above for above, behind in children.items() for node in behind.values()}
        indices = {index: -1}
        found: list[tuple[int, int, int]] = []
        for node in sorted(parents):
            if parents[node] in indices:
                indices[node] = len(found)
                found.append((node, self.update.token_ids[node], indices[parents[node]]))
        return index, found

    def drafts(self, limit: int) -> list[Node]:
        """What is drafted of it."""
        return self.left()[: min(limit, MOST_TREE_NODES) if self.is_tree else limit]

    def _children(self, update: WindowUpdate) -> dict[int, dict[int, int]]:
        """The children by token of every node that can be reached, -1 for the top."""
        parents = update.parents or range(-1, len(update.token_ids) - 1)
        children: dict[int, dict[int, int]] = {-1: {}}
        for node, (token, parent) in enumerate(zip(update.token_ids, parents, strict=True)):
            is_token = 0 <= token < self.vocab_size
            if is_token and parent in children and token not in children[parent]:
                children[parent][token] = node
                children[node] = {}
        return children


# Few different ones, and now and then one that the model does not have.
TOKENS = st.sampled_from([*[10] * 8, *[11] * 5, *[12] * 3, -1, VOCAB, 2**31 - 1, -(2**31)])


@st.composite
def updates(draw: st.DrawFn, slot: int, length: int) -> WindowUpdate:
    """A window near some index of the output, of few different tokens."""
    base = draw(
        st.sampled_from([max(0, length + ahead) for ahead in range(-3, 2)] * 3 + [2**31 - 1])
    )
    tokens = draw(st.lists(TOKENS, max_size=14))
    parents: list[int] = []
    if draw(st.booleans()):
        parents = [draw(st.integers(max(-1, node - 4), node - 1)) for node in range(len(tokens))]
    return WindowUpdate(slot, base, tokens, parents)


class Comparison:
    """Two slots of a table, and what windows mean."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.tables = data, make_tables()
        self.models: dict[int, ModelWindow] = {}
        for slot in (0, 2):
            self.admit(slot)

    def admit(self, slot: int) -> None:
        """Gives a slot to another request, which has no window, though the last one had."""
        if slot in self.models:
            length = len(self.models[slot].output)
            self.tables.windows.set([WindowUpdate(slot, length, CHAIN)])
        self.tables.admit(slot, PROMPT)
        self.models[slot] = ModelWindow(VOCAB)

    def run(self) -> None:
        """Takes a step after the other until the sequences are full."""
        while max(len(model.output) for model in self.models.values()) < MAX_LEN - 25:
            for slot in (0, 2):
                event = self.data.draw(st.integers(0, 8))
                if event == 8:
                    self.admit(slot)
                elif event < 3:
                    update = self.data.draw(updates(slot, len(self.models[slot].output)))
                    self.models[slot].set(update)
                    self.tables.windows.set([update])
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
            assert drafted.drafter_limits[row] == (0 if nodes else limits[slot])
            path, tokens = self._path(nodes), drafted.drafts.token_ids[row].tolist()
            if not model.left() and self.data.draw(st.booleans()):
                # What another drafter got accepted does not bring the window back.
                path = [0]
            # Often what comes next in the window.
            behind = [token for token, parent in model.left() if parent == max(path, default=-1)]
            token = self.data.draw(st.sampled_from([*behind, *behind, *behind, 10, 11, 1]))
            said.append((path, token))
            expected.append(model.find_nodes(path) if nodes else None)
            model.output += [*(tokens[node] for node in path), token]
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


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_windows_are_followed_as_they_are_meant(data: st.DataObject) -> None:
    Comparison(data).run()
