"""A request is bounded, kept while there is room, and its windows are sent when they are of use."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.sources import INT32
from optimist_common.drafts import TokenTree
from optimist_proposer.core.live_requests import LiveRequest, RequestCache, SentWindow
from optimist_proposer.core.messages import LimitCheck
from tests.common.test_token_tree import FEW_TOKENS, paths_of, trees
from tests.proposer.holding import LIMITS, VOCABULARY, live, prepared
from tests.proposer.text import as_text, draft_of, texts, tokens

CHECK = LimitCheck(LIMITS, VOCABULARY)


@pytest.mark.parametrize(
    ("predictions", "prompt", "reason"),
    [
        (["a"] * 4, "", r"num_predicted_tokens: 4 predictions, more than max_predictions \(3\)"),
        (["a" * 60, "b" * 41], "", r"predicted_token_ids: 101 tokens, .*max_prediction_tokens"),
        (["\n" * 50, "a\n"], "", r"predicted_token_ids: 51 lines, .*max_prediction_lines \(50\)"),
        (["é" * 80], "", r"predicted_token_ids: 160 bytes of text, .*max_prediction_bytes"),
        (["a", "\uffff"], "", "predicted_token_ids: token 65535 is not in the vocabulary"),
        (["a"], "\uffff", "prompt_token_ids: token 65535 is not in the vocabulary"),
    ],
)
def test_what_is_too_large_is_named(predictions: list[str], prompt: str, reason: str) -> None:
    fault = CHECK.fault([tokens(text) for text in predictions], tokens(prompt))
    with pytest.raises(ValueError, match=reason):
        raise ValueError(fault)


def test_time_grows_with_the_output() -> None:
    assert CHECK.delay(9.9, 0) is None
    assert "max_alignment_ms (10000)" in (CHECK.delay(10.1, 0) or "")
    assert CHECK.delay(19.9, 1000) is None
    assert CHECK.delay(20.1, 1000) is not None


def test_the_last_of_requests_and_of_sources_are_kept_however_large() -> None:
    cache = RequestCache(10, 1)
    assert cache.put(live("a")) == []
    assert cache.put(live("b")) == ["a"]
    assert cache.get("b") is not None
    cache.pop("b")
    for text in ("one\n", "two\n"):
        cache.put_sources(prepared(text))
    assert cache.num_sources == 1


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3)), max_size=40))
def test_bounds_and_bytes_hold_after_any_use(steps: list[tuple[str, int]]) -> None:
    kinds = [prepared("one\n"), prepared("two\n"), prepared("x" * 90)]
    cache = RequestCache(3, 28_000)
    for name, kind in steps:
        request = cache.get(name)
        if kind == 2:
            cache.pop(name)
        elif kind == 3 and request is not None:
            request.fold(request.num_known, tokens("x" * 9))
            cache.put(request)
        elif kind < 2:
            cache.put(live(name, sources=kinds[kind]))
        assert cache.num_requests <= 3
        held = [request for name in "abcdef" if (request := cache.get(name))]
        named = [one for one in kinds if cache.get_sources(one.name)]
        assert cache.num_sources == len(named)
        assert cache.num_bytes == sum(one.num_bytes for one in held) + sum(
            one.num_bytes for one in named
        )
        assert {id(request.prepared) for request in held} <= {id(one) for one in named}


LINES = "".join(f"line {number}\n" for number in range(40))


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
