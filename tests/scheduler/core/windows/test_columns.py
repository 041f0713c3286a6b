"""Windows that are checked and weighed together are as if each was alone."""

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.drafts import TokenTree
from optimist_scheduler.core.windows.columns import weigh_windows
from optimist_scheduler.core.windows.window import Window, find_window_fault
from tests.scheduler.situation import window_of

VOCAB_SIZE, MOST_NODES = 50, 40


def draw_window(random: Random) -> Window:
    number = random.choice([0, 1, 2, random.randrange(MOST_NODES)])
    is_chain = random.random() < 0.3
    nodes: dict[tuple[int, int], int] = {}
    for _ in range(number):
        last = len(nodes) - 1
        parent = last if is_chain else max(-1, last - random.randrange(4))
        nodes.setdefault((random.randrange(VOCAB_SIZE), parent), random.randrange(-4, 9))
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


@given(st.integers(1, 6), st.booleans(), st.integers(0, 2**32))
def test_windows_together_are_as_each_alone(number: int, is_spoiled: bool, seed: int) -> None:
    random = Random(seed)
    windows = [draw_window(random) for _ in range(number)]
    if is_spoiled:
        place = random.randrange(number)
        windows[place] = spoil(windows[place], random)
    predicted = [random.choice([8, 9, 10]) for _ in windows]
    prompt = [random.choice([2, 3]) for _ in windows]
    faults = [
        find_window_fault(window, num_predicted_tokens, num_prompt_tokens, VOCAB_SIZE)
        for window, num_predicted_tokens, num_prompt_tokens in zip(
            windows, predicted, prompt, strict=True
        )
    ]
    alone = [replace(window) for window in windows]
    assert weigh_windows(windows, predicted, prompt, VOCAB_SIZE) == (not any(faults))
    for one, other in zip(windows, alone, strict=True):
        if any(faults):
            assert one._weights == []
        else:
            hazards, path = one.weigh()
            assert hazards.dtype == np.float32
            np.testing.assert_allclose(hazards, other.weigh().hazards, rtol=1e-5)
            assert path.tolist() == other.tree.find_likeliest_path().tolist()
