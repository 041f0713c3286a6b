"""What is compiled for windows does as the Python does."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner import IS_COMPILED
from optimist_common.drafts import TokenTree
from optimist_scheduler.core.windows.slot_planes import NO_PATH, SlotPlanes, WorkerWindows
from optimist_scheduler.core.windows.window import Window, find_window_fault
from tests.common.test_token_tree import paths_of
from tests.scheduler.situation import window_of

if not IS_COMPILED:
    pytest.skip("there is no C++ compiler", allow_module_level=True)
from optimist_aligner import native

VOCAB_SIZE, MOST_NODES, FEW_TOKENS = 50, 40, 3
NUM_SLOTS, MAX_LENGTH, MOST_DRAFTS = 5, 60, 8
ONE, FEW, ENDS = np.array([1]), np.array([1], np.int32), np.zeros(NUM_SLOTS, np.int32)


def draw_window(random: Random, vocab_size: int = VOCAB_SIZE) -> Window:
    number = random.choice([0, 1, 2, random.randrange(MOST_NODES)])
    is_chain = random.random() < 0.3
    nodes: dict[tuple[int, int], int] = {}
    for _ in range(number):
        last = len(nodes) - 1
        parent = last if is_chain else max(-1, last - random.randrange(4))
        nodes.setdefault((random.randrange(vocab_size), parent), random.randrange(-4, 9))
    has_values = random.random() < 0.8
    values = sorted((random.random() ** 0.2 for _ in nodes), reverse=True) if has_values else []
    return window_of(
        random.randrange(5), [(*each, position) for each, position in nodes.items()], values
    )


def spoil(window: Window, random: Random) -> Window:
    """Returns a window of which a number or a length was changed, maybe to what is wrong."""
    tree, parents = window.tree, np.array(window.tree.list_parents(), np.int32)

    def change(column: np.ndarray, *values: float) -> np.ndarray:
        changed = column.copy()
        if random.random() < 0.2:
            return np.append(changed, changed[:1])
        if len(changed):
            changed[random.randrange(len(changed))] = random.choice(values)
        return changed

    match random.randrange(5):
        case 0:
            return replace(window, base=random.choice([-1, 0]))
        case 1:
            return replace(window, tree=TokenTree(change(tree.token_ids, -1, 3, 49, 50), parents))
        case 2:
            size = len(tree)
            return replace(window, tree=TokenTree(tree.token_ids, change(parents, -2, -1, 0, size)))
        case 3:
            return replace(window, positions=change(window.positions, -5, -4, 8, 9))
    return replace(window, values=change(window.values, float("nan"), -0.1, 0, 1, 1.1))


@given(st.booleans(), st.integers(0, 2**32))
def test_windows_are_checked_and_weighed_as_in_python(is_spoiled: bool, seed: int) -> None:
    random = Random(seed)
    window = draw_window(random)
    if is_spoiled:
        window = spoil(window, random)
    numbers = random.choice([8, 9, 10]), random.choice([2, 3]), VOCAB_SIZE
    fault = find_window_fault(window, *numbers)
    assert window.check(*numbers) == fault
    if fault is None:
        expected = replace(window).find_hazards()
        hazards = window.find_hazards()
        assert hazards.dtype == expected.dtype == np.float32
        np.testing.assert_allclose(hazards, expected, rtol=1e-6)


class Both:
    """The planes of some slots, in Python and compiled."""

    def __init__(self) -> None:
        shape = NUM_SLOTS, MAX_LENGTH
        self._columns = [
            (
                np.zeros(shape, np.int32),
                np.zeros(shape, np.int32),
                np.zeros(1 + NUM_SLOTS * MAX_LENGTH, np.float32),
                np.full((NUM_SLOTS, MOST_DRAFTS), np.inf, np.float32),
                np.zeros(NUM_SLOTS, np.bool_),
                np.zeros(NUM_SLOTS, np.int32),
            )
            for _ in range(2)
        ]
        self._planes = SlotPlanes(*self._columns[0]), native.SlotPlanes(*self._columns[1])
        self.window_ends = np.zeros(NUM_SLOTS, np.int32), np.zeros(NUM_SLOTS, np.int32)

    def call(self, name: str, *arguments: Any, takes_ends: bool = False) -> Any:
        """Calls both, and compares what they return and have written; returns it."""
        one, other = (
            getattr(planes, name)(*arguments, *((ends,) if takes_ends else ()))
            for planes, ends in zip(self._planes, self.window_ends, strict=True)
        )
        if one is not None:
            returned = [each if isinstance(each, tuple) else (each,) for each in (one, other)]
            for mine, its in zip(*returned, strict=True):
                np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-5)
        assert len(self._planes[0]) == len(self._planes[1])
        np.testing.assert_array_equal(*self.window_ends)
        python, compiled = self._columns
        for index in (0, 1, 2, 4, 5):
            np.testing.assert_allclose(python[index], compiled[index], rtol=1e-5, atol=1e-5)
        # What was written of other slots' trees is not read.
        np.testing.assert_allclose(
            python[3][python[4]], compiled[3][compiled[4]], rtol=1e-5, atol=1e-5
        )
        return one

    def set(self, slot: int, window: Window, start: int, length: int) -> bool:
        """Returns whether the window goes on with the sequence."""
        tree = window.tree
        columns = tree.token_ids, tree.parents, window.find_hazards()
        end = self.call("set", slot, *columns, start, length)
        if end == NO_PATH:
            return False
        for ends in self.window_ends:
            ends[slot] = end
        return True


@given(st.integers(0, 2**32))
def test_planes_are_those_of_python(seed: int) -> None:
    random, both = Random(seed), Both()
    lengths = [1] * NUM_SLOTS
    windows: dict[int, list[int]] = {}
    for _ in range(30):
        slot = random.randrange(NUM_SLOTS)
        match random.randrange(4):
            case 0:
                start, window = (
                    random.randrange(1, lengths[slot] + 1),
                    draw_window(random, FEW_TOKENS),
                )
                for begin in (start, lengths[slot]):
                    if window.num_nodes and both.set(slot, window, begin, lengths[slot]):
                        *paths, _root = paths_of(window.tree)
                        windows[slot] = [*random.choice(paths)][lengths[slot] - begin :]
            case 1:
                both.call("remove", slot)
                both.window_ends[0][slot] = both.window_ends[1][slot] = 0
            case 2:
                chosen = sorted(random.sample(range(NUM_SLOTS), random.randrange(NUM_SLOTS)))
                tokens: list[list[int]] = []
                for each in chosen:
                    right = windows.get(each, [])
                    number = min(random.randrange(1, 6), MAX_LENGTH - lengths[each])
                    new = [*right[:number], *(random.randrange(FEW_TOKENS) for _ in range(number))][
                        :number
                    ]
                    windows[each] = right[number:]
                    tokens.append(new)
                both.call(
                    "follow",
                    np.array(chosen, np.int64),
                    np.array([lengths[each] for each in chosen], np.int32),
                    np.array([len(new) for new in tokens], np.int32),
                    np.array([token for new in tokens for token in new], np.int32),
                    takes_ends=True,
                )
                for each, new in zip(chosen, tokens, strict=True):
                    lengths[each] += len(new)
            case 3:
                slots = np.array(random.sample(range(NUM_SLOTS), 3), np.int64)
                starts = np.array([lengths[each] for each in slots.tolist()], np.int32)
                ends = both.window_ends[0][slots]
                both.call(
                    "count_worth",
                    slots,
                    starts,
                    np.maximum(ends - starts, 0),
                    np.array([random.random() * 3 for _ in slots], np.float32),
                )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("set", (NUM_SLOTS, np.zeros(1, np.int32), None, np.zeros(1, np.float32), 1, 1)),
        ("set", (0, np.zeros(1, np.int32), None, np.zeros(1, np.float32), 0, 1)),
        ("set", (0, np.zeros(1, np.int32), None, np.zeros(1, np.float32), 2, 1)),
        ("set", (0, np.zeros(1, np.int32), None, np.zeros(1, np.float32), 1, MAX_LENGTH + 1)),
        ("set", (0, np.zeros(1, np.int32), None, np.zeros(2, np.float32), 1, 1)),
        ("set", (0, np.zeros(1, np.int64), None, np.zeros(1, np.float32), 1, 1)),
        ("set", (0, np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32), 1, 1)),
        ("follow", (ONE, np.array([MAX_LENGTH], np.int32), FEW, np.zeros(1, np.int32), ENDS)),
        ("follow", (ONE, FEW, np.array([-1], np.int32), np.zeros(1, np.int32), ENDS)),
        ("follow", (ONE, FEW, np.array([2], np.int32), np.zeros(1, np.int32), ENDS)),
        ("follow", (ONE - 1 - NUM_SLOTS, FEW, FEW, np.zeros(1, np.int32), ENDS)),
    ],
)
def test_what_is_out_of_range_is_refused(name: str, arguments: tuple[Any, ...]) -> None:
    both = Both()
    with pytest.raises((IndexError, ValueError)):
        getattr(both._planes[1], name)(*arguments)


@given(st.integers(0, 2**32))
def test_windows_of_the_worker_are_those_of_python(seed: int) -> None:
    random = Random(seed)
    both = [kind(np.zeros(NUM_SLOTS, np.int32)) for kind in (WorkerWindows, native.WorkerWindows)]
    windows: dict[int, Window] = {}
    for _ in range(20):
        slot = random.randrange(NUM_SLOTS)
        windows[slot] = window = draw_window(random, FEW_TOKENS)
        for each in both:
            each.set(slot, window.positions, window.tree.parents)
        np.testing.assert_array_equal(both[0].num_nodes, both[1].num_nodes)
        chosen = [*windows]
        slots = np.array(chosen, np.int64)
        sizes = [windows[each].num_nodes for each in chosen]
        counts = np.array([random.randrange(3) for _ in chosen], np.int32)
        nodes = [
            random.randrange(
                -1 if random.random() < 0.02 else 0,
                size + 1 if random.random() < 0.1 else max(size, 1),
            )
            for size, count in zip(sizes, counts.tolist(), strict=True)
            for _ in range(count)
        ]
        found = [each.find_positions(slots, counts, np.array(nodes, np.int32)) for each in both]
        assert (found[0] is None) == (found[1] is None)
        if found[0] is not None and found[1] is not None:
            np.testing.assert_array_equal(found[0], found[1])
        reached = [random.randrange(-1, size) for size in sizes]
        number = [random.randrange(size - node) for size, node in zip(sizes, reached, strict=True)]
        drafted = [
            each.find_drafted(slots, np.array(reached, np.int32), np.array(number, np.int32))
            for each in both
        ]
        for mine, its in zip(*drafted, strict=True):
            np.testing.assert_array_equal(mine, its)
