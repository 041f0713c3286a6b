"""Texts as tokens: words, signs, and line ends with the indentation after them."""

import re
from array import array
from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from optimist_aligner.drafting.draft import Draft
from optimist_aligner.follower import Aligner, AutoFollower
from optimist_aligner.text.sources import INT32, Sources
from optimist_aligner.text.vocabulary import Vocabulary
from tests.proposer.text import tree_of

_TOKEN = re.compile(r"\r?\n *|\r| ?\w+| +|.")

_NAMES = (
    *(("load", "user"), ("save", "order"), ("close", "page"), ("open", "index")),
    *(("read", "cache"), ("write", "token"), ("check", "field"), ("parse", "group")),
    *(("send", "event"), ("merge", "image"), ("count", "route"), ("sort", "price")),
)


def listing(name: str) -> str:
    """Returns code in which every function uses one name twice, and words of its own."""
    return "".join(
        f"def {verb}_{noun}({name}, {noun}):\n    {verb}ed = {name}.{verb}({noun})\n"
        f"    if {verb}ed > {number}:\n        return {noun}\n    return {verb}ed\n\n"
        for number, (verb, noun) in enumerate(_NAMES)
    )


def codes(text: str) -> "array[int]":
    """Returns a token for each character."""
    return array(INT32, map(ord, text))


def observed(
    aligner: Aligner,
    predictions: Sequence[Iterable[int]],
    output: Iterable[int],
    prompt: Iterable[int] = (),
) -> AutoFollower:
    """Returns a follower that observed an output."""
    sources = Sources([array(INT32, each) for each in predictions], array(INT32, prompt))
    follower = aligner.prepare(sources).follow()
    follower.observe(array(INT32, output))
    return follower


@st.composite
def edits(
    draw: st.DrawFn, token_ids: st.SearchStrategy[int], most_tokens: int
) -> tuple[list[list[int]], list[int], list[int]]:
    """Predictions, a part of an output that is an edit of the first one, and a prompt."""
    token_lists = st.lists(token_ids, max_size=most_tokens)
    predictions = draw(st.lists(token_lists, max_size=2))
    output = list(predictions[0]) if predictions else draw(token_lists)
    for _ in range(draw(st.integers(0, 4))):
        start, removed = draw(st.integers(0, len(output))), draw(st.integers(0, 3))
        output[start : start + removed] = draw(st.lists(token_ids, max_size=3))
    return predictions, output[: draw(st.integers(0, len(output)))], draw(token_lists)


class Words:
    """The tokens of some texts, and the default algorithm for them."""

    def __init__(self, *texts: str) -> None:
        found = dict.fromkeys(token for text in texts for token in _TOKEN.findall(text))
        self._ids = {token: token_id for token_id, token in enumerate(found)}
        self._texts = list(found)
        self.algorithm = Aligner(Vocabulary(self._texts))

    def tokens(self, text: str) -> "array[int]":
        """Returns a text as tokens."""
        return array(INT32, [self._ids[token] for token in _TOKEN.findall(text)])

    def text(self, token_ids: Sequence[int]) -> str:
        """Returns tokens as text."""
        return "".join(self._texts[token_id] for token_id in token_ids)

    def follow(self, predictions: Sequence[str], output: str, prompt: str = "") -> AutoFollower:
        """Returns a follower that observed an output."""
        said = [self.tokens(each) for each in predictions]
        return observed(self.algorithm, said, self.tokens(output), self.tokens(prompt))

    def kept(self, draft: Draft, truth: str) -> tuple[str, list[int]]:
        """Returns what of a tree the truth begins with, and the positions of its nodes."""
        nodes = tree_of(draft).walk(self.tokens(truth))
        text = self.text([draft.token_ids[node] for node in nodes])
        return text, [draft.positions[node] for node in nodes]

    def count_passes(self, predictions: Sequence[str], truth: str, prompt: str = "") -> int:
        """Returns how many passes of 16 nodes it takes to say the truth."""
        follower, rest, num_passes = self.follow(predictions, "", prompt), self.tokens(truth), 0
        while rest:
            num_kept = len(tree_of(follower.propose(16, 0.0)).walk(rest))
            follower.observe(rest[: num_kept + 1])
            rest = rest[num_kept + 1 :]
            num_passes += 1
        return num_passes
