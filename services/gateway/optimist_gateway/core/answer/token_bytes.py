"""The bytes that a token of a vocabulary stands for."""

from collections.abc import Callable

_HEX_LENGTH = len("<0x00>")


def _byte_of_letter() -> dict[str, int]:
    """Returns the bytes by the letters that GPT-2's byte-level vocabularies write for them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(len(others))]
    return dict(zip(letters, printable + others, strict=True))


_BYTE_OF_LETTER = _byte_of_letter()


def byte_level_bytes(token: str) -> bytes:
    """Returns the bytes of an entry of a byte-level vocabulary; it has a letter for each byte."""
    try:
        return bytes([_BYTE_OF_LETTER[letter] for letter in token])
    except KeyError:
        # A token that was added as plain text.
        return token.encode()


def byte_fallback_bytes(token: str) -> bytes:
    """Returns the bytes of an entry of a vocabulary whose other bytes are written `<0xE6>`.

    Such vocabularies, SentencePiece's, write U+2581 for a space.
    """
    if len(token) == _HEX_LENGTH and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def bytes_reader(decoders: set[str]) -> Callable[[str], bytes] | None:
    """Returns what reads the entries of a vocabulary, or None if only decoding tells their text.

    Args:
        decoders: The types of its decoders, as a tokenizer.json names them.
    """
    if "ByteLevel" in decoders:
        return byte_level_bytes
    if "ByteFallback" in decoders or "Metaspace" in decoders:
        return byte_fallback_bytes
    return None
