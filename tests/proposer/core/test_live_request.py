"""A window is sent when it is of use, and the output decides what is expected next."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.sources import INT32
from optimist_common.drafts import TokenTree
from optimist_proposer.core.live_requests import LiveRequest, SentWindow
from tests.common.test_token_tree import FEW_TOKENS, paths_of, trees
from tests.proposer.holding import live, prepared
from tests.proposer.text import as_text, draft_of, texts, tokens

LINES = "".join(f"line {number}\n" for number in range(40))
TWO = prepared("one\ntwo\n")


def fold(request: LiveRequest, position: int, text: str) -> str | None:
    new = request.fold(position, tokens(text))
    return None if new is None else as_text(new)


def test_window_is_sent_at_first_and_not_while_it_holds() -> None:
    request = live(sources=prepared(LINES))
    first = request.next_window(40, 0.0)
    assert first is not None
    assert (first.base, as_text(first.draft.token_ids)) == (0, LINES[:40])
    fold(request, 0, LINES[:20])
    assert request.next_window(40, 0.0) is None
    fold(request, 20, LINES[20:21])
    refreshed = request.next_window(40, 0.0)
    assert refreshed is not None
    assert (refreshed.base, as_text(refreshed.draft.token_ids)) == (21, LINES[21:61])


def test_nothing_to_expect_is_said_once() -> None:
    request = live(sources=TWO)
    request.next_window(64, 0.0)
    fold(request, 0, "X")
    lost = request.next_window(64, 0.0)
    assert lost is not None
    assert (lost.base, len(lost.draft)) == (1, 0)
    fold(request, 1, "Y")
    assert request.next_window(64, 0.0) is None
    fold(request, 2, "\none\n")
    found = request.next_window(64, 0.0)
    assert found is not None
    assert as_text(found.draft.token_ids) == "two\n"


@given(texts, texts, st.lists(st.integers(0, 40), max_size=4))
def test_division_of_the_output_changes_nothing(
    predicted: str, output: str, cuts: list[int]
) -> None:
    whole, parts = (live(sources=prepared(predicted)) for _ in range(2))
    fold(whole, 0, output)
    for end in sorted({min(cut, len(output)) for cut in cuts} | {len(output)}):
        # Each observation begins before what is known, as late ones do.
        start = max(parts.num_known - 2, 0)
        fold(parts, start, output[start:end])
    assert parts.output == whole.output
    first, second = whole.next_window(64, 0.0), parts.next_window(64, 0.0)
    assert first is not None
    assert second is not None
    assert first.draft == second.draft


@given(tree=trees(), parts=st.lists(st.lists(FEW_TOKENS, max_size=3), max_size=4))
def test_a_sent_window_lives_while_the_output_is_a_path_of_it(
    tree: TokenTree, parts: list[list[int]]
) -> None:
    paths = paths_of(tree)
    window = SentWindow(3, draft_of(tree.token_ids.tolist(), tree.list_parents()))
    output: tuple[int, ...] = ()
    for part in ([], *parts):
        window.walk(array(INT32, part))
        output += tuple(part)
        ahead = [len(path) - len(output) for path in paths if path[: len(output)] == output]
        assert (window.is_alive, window.num_ahead) == (bool(ahead), max(ahead, default=0))
