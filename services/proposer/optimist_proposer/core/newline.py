"""Which tokens of a vocabulary end a line."""

from collections.abc import Sequence


def newline_token_ids(token_texts: Sequence[str]) -> frozenset[int]:
    """Returns the ids of the tokens whose text contains a line feed.

    Such a token ends its line even if text follows the line feed inside it: lines are cut between
    tokens, never within one.

    Args:
        token_texts: The decoded form of each token of the vocabulary, [vocab_size].
    """
    return frozenset(token_id for token_id, text in enumerate(token_texts) if "\n" in text)
