"""What drafts the tokens of an answer from its form, beside what is drafted from elsewhere."""

from collections.abc import Sequence
from typing import Protocol

from llguidance import LLMatcher

from optimist_worker.grammar.draft_tree import FormDraft, GrammarRow


class Drafter(Protocol):
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
        """See `Drafter.commit`; the end of an output, which no grammar knows, is left out."""
        self._matcher.try_consume_tokens(list(token_ids))

    def draft(self, row: GrammarRow, limit: int, least_chance: float) -> Sequence[FormDraft]:
        """See `Drafter.draft`."""
        token_ids = self._matcher.compute_ff_tokens()[:limit]
        return [FormDraft(one, node - 1, -1) for node, one in enumerate(token_ids)]
