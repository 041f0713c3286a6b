"""What a proposer knows of a tokenizer: the text of every token, and how texts are split."""

from collections.abc import Callable, Sequence
from functools import cached_property

Encode = Callable[[str], Sequence[int]]
"""Returns the tokens of a text."""


class Vocabulary:
    """The tokens of a model."""

    def __init__(self, token_texts: Sequence[str], encode: Encode | None = None) -> None:
        """Sets up.

        Args:
            token_texts: The decoded form of each token [vocab_size].
            encode: The tokenizer; None if it is not at hand.
        """
        self.token_texts, self.encode = tuple(token_texts), encode

    @cached_property
    def newline_token_ids(self) -> frozenset[int]:
        """The tokens whose text contains a line feed.

        Such a token ends its line even if text follows the line feed inside it: lines are cut
        between tokens, never within one.
        """
        return frozenset(token_id for token_id, text in enumerate(self.token_texts) if "\n" in text)
