"""Texts of single tokens, for vocabularies where the text of a sequence is made of them."""

from collections.abc import Collection
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel

from optimist_gateway.core.answer.detokenize import REPLACEMENT


def is_byte_level(backend: Backend) -> bool:
    """Tells whether tokens are bytes, whatever precedes them.

    The bytes of a sequence are then those of its tokens, one after the other. If the bytes of each
    are text, which they are if it decodes to no U+FFFD, their texts join to that of the sequence.
    """
    return isinstance(backend.decoder, ByteLevel)


class TokenTexts(dict[int, str]):
    """The text of each token by its id; looked up when it is first asked for."""

    def __init__(self, backend: Backend) -> None:
        """Takes the tokenizer; its vocabulary bounds the size, as other ids have no text."""
        super().__init__()
        self._backend: Any = backend

    def __missing__(self, token_id: int) -> str:
        text = str(self._backend.decode([token_id], skip_special_tokens=False))
        if text:
            self[token_id] = text
        return text


class WholeTexts(dict[int, str]):
    """The text of each token that has whole characters and is shown; empty for the others."""

    def __init__(self, texts: TokenTexts, skipped_token_ids: Collection[int]) -> None:
        """Takes all texts, and the tokens that are not shown."""
        super().__init__()
        self._texts, self._skipped = texts, skipped_token_ids

    def __missing__(self, token_id: int) -> str:
        text = self._texts[token_id]
        if not text:
            return ""
        whole = "" if token_id in self._skipped or REPLACEMENT in text else text
        self[token_id] = whole
        return whole
