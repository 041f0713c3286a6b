"""Texts as tokens: one per character, and one that has a newline in its middle."""

from array import array

from hypothesis import strategies as st

from optimist_aligner.algorithm import Algorithm, Follower
from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.text.sources import INT32, Sources

NEWLINE_INDENT = 1000
"""The token whose text is a newline and two spaces; written § in these tests."""

NEWLINES = frozenset({ord("\n"), NEWLINE_INDENT})

# Few letters, so that lines and parts of lines occur again and again.
texts = st.text(alphabet="ab\n§", max_size=40)


def tokens(text: str) -> "array[int]":
    return array(INT32, [NEWLINE_INDENT if letter == "§" else ord(letter) for letter in text])


def as_text(token_ids: "array[int]") -> str:
    return "".join("§" if token == NEWLINE_INDENT else chr(token) for token in token_ids)


def followed(algorithm: Algorithm, predicted: str | list[str], output: str) -> Follower:
    """Returns a follower that observed all of `output` at once."""
    predictions = [predicted] if isinstance(predicted, str) else predicted
    follower = algorithm.prepare(Sources([tokens(text) for text in predictions])).follow()
    follower.observe(tokens(output))
    return follower


def expected_text(
    algorithm: Algorithm, predicted: str | list[str], output: str, max_tokens: int = 1000
) -> str:
    """Returns the text of the likeliest path behind `output`."""
    draft = followed(algorithm, predicted, output).propose(max_tokens, 0.0)
    return as_text(array(INT32, [draft.token_ids[node] for node in first_path(draft)]))


def first_path(draft: Draft) -> list[int]:
    """Returns the nodes from the first root on, always to the first child."""
    path: list[int] = []
    for node, parent in enumerate(draft.parents):
        if parent == (path[-1] if path else NO_PARENT):
            path.append(node)
    return path


def num_passes(
    algorithm: Algorithm, predicted: "array[int]", truth: "array[int]", num_drafts: int
) -> int:
    """Counts the passes of a target that emits `truth` and verifies `num_drafts` nodes a pass."""
    follower = algorithm.prepare(Sources([predicted])).follow()
    position = passes = 0
    while position < len(truth):
        draft = follower.propose(num_drafts, 0.0)
        node, end = NO_PARENT, position
        for index, parent in enumerate(draft.parents):
            if parent == node and end < len(truth) and draft.token_ids[index] == truth[end]:
                node, end = index, end + 1
        follower.observe(truth[position : end + 1])
        position = end + 1
        passes += 1
    return passes
