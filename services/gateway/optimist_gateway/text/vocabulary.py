"""What the tokens of a vocabulary are: their texts and bytes."""

import json
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel
from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTE_OF_LETTER = {
    letter: byte
    for byte, letter in bytes_to_unicode().items()  # type: ignore[no-untyped-call]
}
"""How byte-level vocabularies write each byte."""
_HEX_LENGTH = len("<0x00>")


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_LETTER[letter] for letter in token])
    except KeyError:
        # A token that was added as plain text.
        return token.encode()


def _byte_fallback_bytes(token: str) -> bytes:
    """Returns the bytes of an entry of SentencePiece's; it has U+2581 for a space."""
    if len(token) == _HEX_LENGTH and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


class Vocabulary:
    """Texts and bytes of single tokens, as they are asked for."""

    def __init__(self, backend: Any) -> None:
        """Takes a tokenizer of the tokenizers library."""
        self._backend = backend
        decoder = {} if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        decoders = {one.get("type") for one in decoder.get("decoders", [decoder])}
        self._read_bytes = None
        if "ByteLevel" in decoders:
            self._read_bytes = _byte_level_bytes
        elif decoders & {"ByteFallback", "Metaspace"}:
            self._read_bytes = _byte_fallback_bytes
        added = backend.get_added_tokens_decoder().items()
        self._added: dict[int, str] = {token_id: token.content for token_id, token in added}
        # No larger than the vocabulary.
        self._known: dict[int, tuple[str, bytes]] = {}

    def describe(self, token_id: int) -> tuple[str, bytes]:
        """Returns a token's text, with U+FFFD for bytes that are no text, and its bytes.

        Tokens that are only in the model, not in the tokenizer, have neither.
        """
        known = self._known.get(token_id)
        if known is None:
            token_bytes = self._bytes(token_id)
            known = self._known[token_id] = token_bytes.decode(errors="replace"), token_bytes
        return known

    def _bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added.encode()
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._read_bytes is None:
            return str(self._backend.decode([token_id], skip_special_tokens=False)).encode()
        return self._read_bytes(token)


def is_byte_level(backend: Backend) -> bool:
    """Returns whether tokens are bytes, whatever precedes them.

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
