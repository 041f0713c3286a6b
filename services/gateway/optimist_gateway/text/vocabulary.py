"""What the tokens of a vocabulary are: their texts and bytes."""

import json
from typing import Any

from tokenizers.decoders import ByteLevel
from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTE_OF_LETTER = {
    letter: byte
    for byte, letter in bytes_to_unicode().items()  # type: ignore[no-untyped-call]
}
"""How byte-level vocabularies write each byte."""


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_LETTER[letter] for letter in token])
    except KeyError:
        # A token that was added as plain text.
        return token.encode()


def _byte_fallback_bytes(token: str) -> bytes:
    """Returns the bytes of an entry of SentencePiece's; it has U+2581 for a space."""
    if len(token) == len("<0x00>") and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


class Vocabulary(dict[int, tuple[str, bytes]]):
    """The text of each token by its id, with U+FFFD for bytes that are no text, and its bytes.

    Tokens are looked up when they are first asked for. Those that are only in the model, not in the
    tokenizer, have neither text nor bytes.
    """

    def __init__(self, backend: Any) -> None:
        """Takes a tokenizer of the tokenizers library; its vocabulary bounds the size."""
        super().__init__()
        self._backend = backend
        self.is_byte_level = isinstance(backend.decoder, ByteLevel)
        """Whether tokens are bytes, whatever precedes them: those of a sequence join."""
        decoder = {} if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        decoders = {one.get("type") for one in decoder.get("decoders", [decoder])}
        self._read_bytes = None
        self._added: dict[int, str] = {}
        if "ByteLevel" in decoders:
            self._read_bytes = _byte_level_bytes
        elif decoders & {"ByteFallback", "Metaspace"}:
            self._read_bytes = _byte_fallback_bytes
            added = backend.get_added_tokens_decoder().items()
            self._added = {token_id: token.content for token_id, token in added}

    def __missing__(self, token_id: int) -> tuple[str, bytes]:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return "", b""
        if token_id in self._added:
            token_bytes = self._added[token_id].encode()
        elif self._read_bytes is None:
            token_bytes = self._backend.decode([token_id], skip_special_tokens=False).encode()
        else:
            token_bytes = self._read_bytes(token)
        self[token_id] = token_bytes.decode(errors="replace"), token_bytes
        return self[token_id]
