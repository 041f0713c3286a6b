"""Texts of single tokens, for vocabularies where the text of a sequence is made of them."""

from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel


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
