"""The drafts of a row whose output follows a grammar, as a tree."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

Bits = npt.NDArray[np.uint8]
"""Bit i of byte b for token 8 * b + i, `[..., num_bytes]`."""


class GrammarRow(NamedTuple):
    """The drafts of one slot in a pass."""

    slot: int
    token_ids: Sequence[int]
    parents: Sequence[int] | None = None
    """Index of each draft's parent, -1: the last known token; None: a chain."""

    def nodes(self) -> Iterator[tuple[int, int]]:
        """Iterates over the tokens and parents of all drafts."""
        size = len(self.token_ids)
        parents = range(-1, size - 1) if self.parents is None else self.parents
        return zip(self.token_ids, parents, strict=True)


class FormDraft(NamedTuple):
    """A draft of a row whose output follows a grammar."""

    token_id: int
    parent: int
    """Index of its parent, -1: the last known token."""
    base: int
    """Which of the row's own drafts it is, -1 for none of them."""


class DraftTree:
    """The drafts of a row, of which no two are the same; see `FormDrafter.draft`."""

    def __init__(
        self, matcher: LLMatcher, own: Sequence[FormDraft], limit: int, least_chance: float
    ) -> None:
        """Starts with those of a row's own drafts that the grammar allows."""
        self.matcher = matcher
        self.drafts = drafts = _allow(matcher, own)
        self.least_chance, self._limit = least_chance, limit
        self.has_own = bool(drafts)
        self._found = {(one.parent, one.token_id): index for index, one in enumerate(drafts)}

    def add(self, path: Sequence[int], new: Sequence[int]) -> int:
        """Adds tokens after a path as far as the grammar allows and there is room.

        Returns how many it allows.
        """
        if not new:
            return 0
        token_ids = [*path, *new]
        number = self.matcher.validate_tokens(token_ids)
        node = -1
        for token_id in token_ids[:number]:
            key = node, token_id
            if key not in self._found:
                if len(self.drafts) >= self._limit:
                    break
                self._found[key] = len(self.drafts)
                self.drafts.append(FormDraft(token_id, node, -1))
            node = self._found[key]
        return number - len(path)


def _allow(matcher: LLMatcher, own: Sequence[FormDraft]) -> list[FormDraft]:
    """Returns the drafts that the grammar allows."""
    indices, is_allowed = {-1: -1}, set[int]()
    for leaf in {*range(len(own))} - {parent for _, parent, _ in own}:
        path = [leaf]
        while (parent := own[path[-1]].parent) >= 0:
            path.append(parent)
        path.reverse()
        is_allowed.update(path[: matcher.validate_tokens([own[i].token_id for i in path])])
    drafts: list[FormDraft] = []
    for token_id, parent, node in own:
        if node in is_allowed:
            indices[node] = len(drafts)
            drafts.append(FormDraft(token_id, indices[parent], node))
    return drafts


def has_bit(mask: Bits, token_id: int) -> bool:
    """Returns whether a mask allows a token."""
    in_vocabulary = 0 <= token_id < 8 * len(mask)
    return in_vocabulary and bool(mask[token_id // 8] >> token_id % 8 & 1)
