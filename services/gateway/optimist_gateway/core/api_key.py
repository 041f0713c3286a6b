"""API keys: only their digests are kept, and all of them are compared in constant time."""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from string import hexdigits

MAX_KEYS = 1024
MAX_KEY_BYTES = 512
_DIGEST_CHARACTERS = 64


@dataclass(frozen=True)
class ApiKey:
    """A key by which a client is known."""

    name: str
    """What logs and limits call the client."""
    digest: bytes
    """SHA-256 of the key."""
    is_admin: bool = False


class KeyRing:
    """The keys that are valid."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self.keys = tuple(keys)

    def find(self, secret: bytes) -> ApiKey | None:
        """Returns the key that a client shows, or None if there is none like it."""
        if len(secret) > MAX_KEY_BYTES:
            return None
        digest, found = sha256(secret).digest(), None
        # All of them, so that the time says nothing about where the right one stands.
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def parse_keys(lines: Iterable[str], *, is_admin: bool = False) -> list[ApiKey]:
    """Returns the keys of lines `name:key`, `key`, `name:digest` or `digest`.

    A digest is the SHA-256 of a key as 64 hexadecimal digits. Empty lines and those that begin with
    `#` are skipped.

    Raises:
        ValueError: A line is no key, a name occurs twice or there are too many. The text names
            the line's number and nothing of its content.
    """
    keys: dict[str, ApiKey] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, separator, secret = text.rpartition(":")
        secret = secret.strip()
        if not secret or (separator and not name.strip()) or len(text) > MAX_KEY_BYTES:
            raise ValueError(f"line {number} is not name:key, key, name:sha256 or sha256")
        digest = _digest(secret)
        name = name.strip() or f"key-{digest.hex()[:8]}"
        if name in keys:
            raise ValueError(f"line {number}: its name was used before")
        keys[name] = ApiKey(name, digest, is_admin)
    if len(keys) > MAX_KEYS:
        raise ValueError(f"there are {len(keys)} keys, at most {MAX_KEYS} may be")
    return list(keys.values())


def _digest(secret: str) -> bytes:
    if len(secret) == _DIGEST_CHARACTERS and set(secret) <= set(hexdigits):
        return bytes.fromhex(secret)
    return sha256(secret.encode()).digest()
