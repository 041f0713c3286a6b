from array import array

from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.drafting.draft import FLOAT32, NO_PARENT, Draft
from optimist_aligner.text.sources import INT32
from optimist_proposer.core.live_requests import SentWindow
from tests.proposer.text import tokens


def tree(text: str, parents: list[int]) -> Draft:
    positions = array(INT32, [-1] * len(text))
    values = array(FLOAT32, [1.0] * len(text))
    return Draft(tokens(text), array(INT32, parents), positions, values)


def chain(text: str) -> Draft:
    return tree(text, list(range(-1, len(text) - 1)))


def test_chain_is_walked_to_its_end() -> None:
    window = SentWindow(3, chain("abc"))
    assert window.num_ahead == 3
    window.walk(tokens("ab"))
    assert (window.is_alive, window.num_ahead) == (True, 1)
    window.walk(tokens("c"))
    assert (window.is_alive, window.num_ahead) == (True, 0)
    window.walk(tokens("d"))
    assert (window.is_alive, window.num_ahead) == (False, 0)


def test_tree_lives_while_the_output_is_a_path() -> None:
    # a-b-c and a-x-y-z, and another root b.
    draft = tree("abxycbz", [-1, 0, 0, 2, 1, -1, 3])
    window = SentWindow(0, draft)
    assert window.num_ahead == 4
    window.walk(tokens("a"))
    assert window.num_ahead == 3
    window.walk(tokens("b"))
    assert window.num_ahead == 1
    window.walk(tokens("z"))
    assert not window.is_alive
    other = SentWindow(0, draft)
    other.walk(tokens("b"))
    assert (other.is_alive, other.num_ahead) == (True, 0)


def test_empty_window_ends_with_the_next_token() -> None:
    window = SentWindow(0, Draft())
    assert (window.is_alive, window.num_ahead) == (True, 0)
    window.walk(tokens("a"))
    assert not window.is_alive


@given(st.data())
def test_walk_agrees_with_the_paths_of_the_tree(data: st.DataObject) -> None:
    letters = data.draw(st.text(alphabet="ab", max_size=12))
    parents = [data.draw(st.integers(NO_PARENT, n - 1)) for n in range(len(letters))]
    # As in a draft, no two nodes behind the same one are equal.
    seen: set[tuple[int, str]] = set()
    paths: dict[int, str] = {NO_PARENT: ""}
    kept = {NO_PARENT: NO_PARENT}
    nodes: list[tuple[int, str]] = []
    for node, (letter, parent) in enumerate(zip(letters, parents, strict=True)):
        if parent not in kept or (kept[parent], letter) in seen:
            continue
        seen.add((kept[parent], letter))
        nodes.append((kept[parent], letter))
        kept[node] = len(nodes) - 1
        paths[kept[node]] = paths[kept[parent]] + letter
    draft = tree("".join(letter for _, letter in nodes), [parent for parent, _ in nodes])
    output = data.draw(st.text(alphabet="ab", max_size=6))
    window = SentWindow(0, draft)
    window.walk(tokens(output))
    assert window.is_alive == (output in paths.values())
    if window.is_alive:
        longest = max(len(path) for path in paths.values() if path.startswith(output))
        assert window.num_ahead == longest - len(output)
