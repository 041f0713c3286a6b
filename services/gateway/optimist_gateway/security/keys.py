"""The keys that are valid now, of the settings and of files that may change, and who asks.

Only their digests are kept, and looked up: how long that takes says nothing about a key.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from string import hexdigits

from optimist_common.errors import SetupError
from optimist_gateway.core.error import ApiError

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""How often is looked whether a file has changed."""

PROBES = frozenset({"/health", "/live", "/ready"})
"""Paths that need no key."""

MAX_KEYS = 1024
MAX_KEY_BYTES = 512
_DIGEST_CHARACTERS = 64


@dataclass(frozen=True)
class Client:
    """Who sent the request that the running task answers."""

    name: str = ""
    """Name of its key, for logs and limits; empty if keys are not asked for."""
    is_admin: bool = False


ANONYMOUS = Client()

current_client: ContextVar[Client] = ContextVar("current_client", default=ANONYMOUS)
"""Set where a request is authenticated, before it is handled."""


def parse_keys(lines: Iterable[str], *, is_admin: bool = False) -> dict[bytes, Client]:
    """Returns the clients of lines `name:key`, `key`, `name:digest` or `digest`, by digests.

    A digest is the SHA-256 of a key as 64 hexadecimal digits. Empty lines and those that begin with
    `#` are skipped. Raises ValueError, which names the line's number and nothing of its content, if
    a line is no key, a name occurs twice or there are too many.
    """
    digests: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, separator, secret = text.rpartition(":")
        secret = secret.strip()
        if not secret or (separator and not name.strip()) or len(text) > MAX_KEY_BYTES:
            raise ValueError(f"line {number} is not name:key, key, name:sha256 or sha256")
        is_digest = len(secret) == _DIGEST_CHARACTERS and set(secret) <= set(hexdigits)
        digest = bytes.fromhex(secret) if is_digest else sha256(secret.encode()).digest()
        name = name.strip() or f"key-{digest.hex()[:8]}"
        if name in digests:
            raise ValueError(f"line {number}: its name was used before")
        digests[name] = digest
    if len(digests) > MAX_KEYS:
        raise ValueError(f"there are {len(digests)} keys, at most {MAX_KEYS} may be")
    return {digest: Client(name, is_admin) for name, digest in digests.items()}


@dataclass(frozen=True)
class KeySource:
    """Keys of one level."""

    flag: str
    """Flag of the setting, for errors."""
    listed: Sequence[str]
    """Keys of the settings."""
    path: str
    """File with one key for each line; empty for none."""
    is_admin: bool = False

    def read(self) -> list[tuple[bytes, Client]]:
        """Returns the keys; raises SetupError if the file cannot be read or a line is no key."""
        flag = self.flag
        try:
            keys = [*parse_keys(self.listed, is_admin=self.is_admin).items()]
            if self.path:
                flag = f"{self.flag}-file: {self.path}"
                lines = Path(self.path).read_text(encoding="utf-8").splitlines()
                keys += parse_keys(lines, is_admin=self.is_admin).items()
        except UnicodeDecodeError:
            raise SetupError(f"{flag}: cannot be read: it is not UTF-8") from None
        except OSError as error:
            raise SetupError(f"{flag}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise SetupError(f"{flag}: {error}") from None
        return keys

    def stamp(self) -> tuple[int, ...] | None:
        """Returns what changes when the file does."""
        if not self.path:
            return None
        try:
            status = Path(self.path).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


class Keys:
    """Knows clients by their keys; reads files again when they have changed."""

    def __init__(self, sources: Sequence[KeySource]) -> None:
        """Reads the keys; raises SetupError if that fails."""
        self._sources = sources
        self._stamps = [source.stamp() for source in sources]
        self._clients = self._read()
        self._checked = time.monotonic()

    @property
    def asks_clients(self) -> bool:
        """Whether clients need a key."""
        self._follow_files()
        # A file that lost its last key locks all out; it does not let all in.
        return any(bool(one.path or one.listed) for one in self._sources if not one.is_admin)

    def find(self, secret: bytes) -> Client | None:
        """Returns the client that shows a key, or None if it is no valid one."""
        self._follow_files()
        return self._clients.get(sha256(secret).digest())

    def require(self, secret: bytes | None, where: str, *, needs_admin: bool = False) -> Client:
        """Returns who shows a key, which is sent as `where` says.

        Raises ApiError if it is missing, wrong, or no admin's; or there is none at all for admins.
        """
        self._follow_files()
        if needs_admin and not any(one.is_admin for one in self._clients.values()):
            reason = "there is no admin key: set --admin-keys-file"
            raise ApiError(403, reason, code="admin_disabled")
        if not secret:
            reason = f"You didn't provide an API key. Send it {where}."
            raise ApiError(401, reason, code="missing_api_key")
        client = self.find(secret)
        if client is None:
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key")
        if needs_admin and not client.is_admin:
            raise ApiError(403, "this needs an admin key", code="permission_denied")
        return client

    def reload(self) -> None:
        """Reads the files again; keys stay as they were if that fails."""
        self._stamps = [source.stamp() for source in self._sources]
        try:
            self._clients = self._read()
            logger.info("%d API keys are valid", len(self._clients))
        except SetupError as error:
            logger.error("the API keys stay as they were: %s", error)

    def _follow_files(self) -> None:
        now = time.monotonic()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            if [source.stamp() for source in self._sources] != self._stamps:
                self.reload()

    def _read(self) -> dict[bytes, Client]:
        keys = [key for source in self._sources for key in source.read()]
        if len({client.name for _, client in keys}) < len(keys):
            raise SetupError("--api-keys, --admin-keys: a name or a key is given twice")
        return dict(keys)
