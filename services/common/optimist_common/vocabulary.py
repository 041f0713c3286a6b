"""What the tokens of a vocabulary are: their texts and bytes."""

import json
from typing import Any

from tokenizers.decoders import ByteLevel


def _byte_of_letter() -> dict[str, int]:
    """Returns how byte-level vocabularies write each byte, as GPT-2's does."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_of_letter()


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

    They are what the token adds to a text of other tokens. Tokens are looked up when they are first
    asked for. Those that are only in the model, not in the tokenizer, have neither text nor bytes.
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
        self._added = {
            token_id: token.content
            for token_id, token in backend.get_added_tokens_decoder().items()
        }
        if "ByteLevel" in decoders:
            self._read_bytes, self._added = _byte_level_bytes, {}
        elif decoders & {"ByteFallback", "Metaspace"}:
            self._read_bytes = _byte_fallback_bytes
        self._anchor: list[int] = []
        if self._read_bytes is None:
            ordinary = (one for one in range(backend.get_vocab_size()) if one not in self._added)
            self._anchor = next(([one] for one in ordinary if self._decode([one])), [])

    def __missing__(self, token_id: int) -> tuple[str, bytes]:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return "", b""
        if self._read_bytes is None:
            # Many decoders write a space between words, which is no part of the first one.
            text = self._decode([*self._anchor, token_id])
            token_bytes = text[len(self._decode(self._anchor)) :].encode()
        elif token_id in self._added:
            token_bytes = self._added[token_id].encode()
        else:
            token_bytes = self._read_bytes(token)
        self[token_id] = token_bytes.decode(errors="replace"), token_bytes
        return self[token_id]

    def joins(self) -> bool:
        """Returns whether the bytes of tokens join to their text, all but the first one's space."""
        if self._read_bytes is not None:
            return True
        token_ids = range(self._backend.get_vocab_size())
        text = "".join(self[token_id][0] for token_id in (*self._anchor, *token_ids))
        return self._decode([*self._anchor, *self._anchor, *token_ids]).endswith(text)

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._backend.decode(token_ids, skip_special_tokens=False))
