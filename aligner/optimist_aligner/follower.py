"""The default algorithm: follows an output through all that it may repeat."""

from array import array
from collections import Counter
from typing import Final

from optimist_aligner.drafting.candidates import Candidate, View, none_features
from optimist_aligner.drafting.draft import Draft
from optimist_aligner.drafting.guesses import (
    guess_ahead,
    guess_beginning,
    guess_common,
    guess_frequent,
    guess_template,
)
from optimist_aligner.drafting.matches import LONG_LENGTH, find_matches, find_skipped
from optimist_aligner.drafting.tree import TreeGrower
from optimist_aligner.following.alignment import CERTAIN_RUN, Alignment
from optimist_aligner.following.template import Template
from optimist_aligner.model.common import Common, Continuations, load_continuations
from optimist_aligner.model.weights import Weights, load_weights
from optimist_aligner.text.context_index import MOST_TOKEN_ID, ContextIndex
from optimist_aligner.text.searched_text import SearchedText
from optimist_aligner.text.sources import SEPARATOR, Sources
from optimist_aligner.text.token_class import TokenClasses
from optimist_aligner.text.vocabulary import Vocabulary

_NUM_FREQUENT: Final = 24
_FREQUENT_VALUE: Final = 0.02
"""Where nodes have to be worth more, frequent tokens are not looked at."""
_FREQUENT_RUN: Final = 6
_BYTES_PER_TOKEN: Final = 512


class AutoReference:
    """What an output may repeat, with an index of its contexts."""

    def __init__(
        self,
        searched: SearchedText,
        classes: TokenClasses,
        weights: Weights,
        common: Common | None,
        is_chain: bool,
    ) -> None:
        token_ids = searched.token_ids
        if max(token_ids, default=0) > MOST_TOKEN_ID:
            raise ValueError(f"sources: a token is larger than {MOST_TOKEN_ID}")
        self.searched, self.classes, self.weights = searched, classes, weights
        self.common, self.is_chain = common, is_chain
        self.text = list(token_ids)
        self.index = ContextIndex(self.text)
        counts = Counter(token_id for token_id in self.text if token_id != SEPARATOR)
        self.frequent = sorted(counts, key=lambda each: (-counts[each], each))[:_NUM_FREQUENT]

    @property
    def num_bytes(self) -> int:
        """See `Reference.num_bytes`."""
        return 4096 + _BYTES_PER_TOKEN * len(self.text)

    def follow(self) -> "AutoFollower":
        """See `Reference.follow`."""
        return AutoFollower(self)


class AutoFollower:
    """An output, the offsets it stands at, and what may come next."""

    def __init__(self, reference: AutoReference) -> None:
        self._reference = reference
        self._text = list(reference.text)
        self._start = len(self._text)
        searched = reference.searched
        self._output = ContextIndex(self._text, self._start)
        self._alignment = Alignment(
            self._text, searched.num_aligned, searched.context_start, reference.index
        )
        self._template = Template(self._text, self._output)

    @property
    def num_alignments(self) -> int:
        """See `Follower.num_alignments`."""
        return self._alignment.num_searches

    def observe(self, token_ids: "array[int]") -> None:
        """See `Follower.observe`."""
        text, alignment, template = self._text, self._alignment, self._template
        # A token that no vocabulary has stands for all of them, so that tables stay small.
        new, position = [min(token_id, MOST_TOKEN_ID) for token_id in token_ids], 0
        while position < len(new):
            count = 0
            if alignment.run >= CERTAIN_RUN:
                count = alignment.count_following(new[position:])
            if count:
                text.extend(new[position : position + count])
                alignment.follow(count)
                template.leave()
                position += count
            else:
                token_id = new[position]
                text.append(token_id)
                template.advance(token_id)
                alignment.advance(token_id)
                position += 1

    def propose(self, max_tokens: int, min_value: float) -> Draft:
        """See `Follower.propose`."""
        view, weights = self.look(), self._reference.weights
        candidates, longest = self.find_candidates(view, min_value)
        none_logit = weights.weigh(none_features(view, longest))
        positions, is_chain = self._reference.searched.positions, self._reference.is_chain
        grower = TreeGrower(view, weights, positions, max_tokens, min_value, is_chain)
        return grower.grow(candidates, none_logit)

    def find_candidates(self, view: View, min_value: float) -> tuple[list[Candidate], int]:
        """Returns what may come next, likely or not, and the most tokens that agree before it."""
        if view.is_rewrite and not view.num_output:
            return guess_beginning(view, self._reference.searched.starts), 0
        candidates = find_matches(view)
        run = view.alignment.run
        longest = max((each.length for each in candidates), default=0)
        if not view.alignment.is_certain and longest < LONG_LENGTH:
            taken = {each.offset for each in candidates if each.offset < self._start}
            candidates += find_skipped(view, taken)
            candidates += guess_template(view)
            if view.is_rewrite:
                candidates += guess_ahead(view, taken)
            elif view.common is not None:
                candidates += guess_common(view, view.common)
        if run < _FREQUENT_RUN and min_value < _FREQUENT_VALUE:
            candidates += guess_frequent(view, self._reference.frequent)
        return candidates, longest

    def look(self) -> View:
        """Returns what candidates are found in."""
        reference = self._reference
        return View(
            self._text,
            self._start,
            reference.searched,
            reference.classes,
            reference.index,
            self._output,
            self._alignment,
            self._template,
            reference.common,
        )


class Aligner:
    """The default."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        weights: Weights | None = None,
        continuations: Continuations | None = None,
        is_chain: bool = False,
    ) -> None:
        """Sets up.

        Args:
            vocabulary: Of the model.
            weights: Others than those of the package.
            continuations: Counts other than those of the package.
            is_chain: Whether drafts are one path each, for engines that verify no trees.
        """
        self._vocabulary, self._is_chain = vocabulary, is_chain
        self._classes = TokenClasses(vocabulary.token_texts)
        self._weights = {
            is_rewrite: weights or load_weights(is_rewrite=is_rewrite)
            for is_rewrite in (False, True)
        }
        self._continuations = continuations
        self._common: Common | None = None

    @property
    def common(self) -> Common | None:
        """What is common in conversations; it takes half a second to build, once."""
        encode = self._vocabulary.encode
        if self._common is None and encode is not None:
            counted = self._continuations or load_continuations()
            self._common = Common(counted, encode, self._classes)
        return self._common

    def prepare(self, sources: Sources) -> AutoReference:
        """See `Algorithm.prepare`."""
        searched = SearchedText(sources, self._vocabulary)
        weights, common = self._weights[searched.is_rewrite], self._find_common(searched)
        return AutoReference(searched, self._classes, weights, common, self._is_chain)

    def _find_common(self, searched: SearchedText) -> Common | None:
        """Returns what is common in such an output; None if that was not counted."""
        # It was counted in the answers of agents; a chat says other things.
        return self.common if searched.has_readings and not searched.is_rewrite else None
