"""What a proposer knows of a tokenizer: the text of every token."""

from collections.abc import Sequence
from functools import cached_property


class Vocabulary:
    """The tokens of a model."""

    def __init__(self, token_texts: Sequence[str]) -> None:
        """Takes the decoded form of each token [vocab_size]."""
        self.token_texts = tuple(token_texts)

    @cached_property
    def newline_token_ids(self) -> frozenset[int]:
        """The tokens whose text contains a line feed.

        Such a token ends its line even if text follows the line feed inside it: lines are cut
        between tokens, never within one.
        """
        return frozenset(token_id for token_id, text in enumerate(self.token_texts) if "\n" in text)
