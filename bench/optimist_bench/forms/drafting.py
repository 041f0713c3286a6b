"""What drafts the tokens of an answer from its form, beside what is drafted from elsewhere."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from llguidance import LLMatcher

from optimist_worker.model.matcher import GrammarRow, Matcher


class FormDraft(NamedTuple):
    """A node of a tree of drafts."""

    token_id: int
    parent: int
    """Index of the node before it, -1: the output so far."""
    base: int
    """Which of the row's drafts it is; -1: the form's own."""


class FormDrafter(Protocol):
    """What `Matcher` offers: it follows one output and drafts how it may go on."""

    def commit(self, token_ids: Sequence[int]) -> None:
        """Takes the tokens that were emitted."""

    def draft(self, row: GrammarRow, limit: int, least_chance: float) -> Sequence[FormDraft]:
        """Returns all nodes, parents first: the row's that the grammar allows, then the form's.

        Args:
            row: Drafts from elsewhere, perhaps none.
            limit: Most nodes.
            least_chance: Of a node of the form.
        """


class ForcedDrafter:
    """Drafts what the grammar forces after the output, as a chain, and nothing else."""

    def __init__(self, compiled: LLMatcher) -> None:
        """Starts to follow a grammar that `compile_grammar` made."""
        self._matcher = compiled.deep_copy()

    def commit(self, token_ids: Sequence[int]) -> None:
        """See `FormDrafter.commit`; the end of an output, which no grammar knows, is left out."""
        self._matcher.try_consume_tokens(list(token_ids))

    def draft(self, row: GrammarRow, limit: int, least_chance: float) -> Sequence[FormDraft]:
        """See `FormDrafter.draft`."""
        return _forced(self._matcher, -1, 0)[:limit]


class StandInDrafter(Matcher):
    """Drafts what is forced after the last draft of the base that the grammar allows."""

    def draft(self, row: GrammarRow, limit: int, least_chance: float) -> Sequence[FormDraft]:
        """See `FormDrafter.draft`."""
        parents = range(-1, len(row.token_ids) - 1) if row.parents is None else row.parents
        drafts: list[FormDraft] = []
        paths: dict[int, tuple[int, list[int]]] = {-1: (-1, [])}
        """By drafts of the base: which node of the tree each is, and the tokens up to there."""
        for node, (token_id, parent) in enumerate(zip(row.token_ids, parents, strict=True)):
            if parent not in paths:
                continue
            path = [*paths[parent][1], token_id]
            if self._matcher.validate_tokens(path) == len(path):
                paths[node] = len(drafts), path
                drafts.append(FormDraft(token_id, paths[parent][0], node))
        index, path = paths[max(paths)]
        if self._matcher.try_consume_tokens(path) == len(path):
            drafts += _forced(self._matcher, index, len(drafts))
        self._matcher.rollback(len(path))
        return drafts[:limit]


def _forced(matcher: LLMatcher, parent: int, size: int) -> list[FormDraft]:
    """Returns what is forced where a matcher stands, after a node of a tree of a size."""
    token_ids = matcher.compute_ff_tokens()
    parents = [parent, *range(size, size + len(token_ids))]
    return [FormDraft(one, above, -1) for one, above in zip(token_ids, parents, strict=False)]
