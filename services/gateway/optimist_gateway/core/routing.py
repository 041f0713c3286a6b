"""Which of several schedulers a request goes to.

Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998)
sends prompts that begin alike to one scheduler, whose prefix cache then holds their beginning, and
moves only the share of a scheduler that appears or vanishes. Bounded loads (Mirrokni, Thorup and
Zadimoghaddam, "Consistent hashing with bounded loads", 2018) pass over one that has clearly more to
do than others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

PREFIX_BLOCK_TOKENS = 64
MAX_PREFIX_TOKENS = 256
_TOKEN_BYTES = 4
# What another scheduler's cache saves is worth a wait for this many requests more.
LOAD_FACTOR = 1.5
LOAD_SLACK = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """A scheduler that a request could go to."""

    name: str
    """The same at all gateways."""
    load: int = 0
    """Requests there, running or waiting."""
    capacity: int = 0
    """Tokens that its KV memory holds; 0 if unknown."""
    is_sound: bool = True
    """Whether it works, as far as is known; others are taken only without such."""


def prefix_key(cache_salt: str, prompt: bytes) -> bytes | None:
    """Returns what prompts have in common that begin alike; None for those that are too short.

    Args:
        cache_salt: Tenants of different salts share no cache.
        prompt: Token ids, little-endian int32.
    """
    num_tokens = min(len(prompt) // _TOKEN_BYTES, MAX_PREFIX_TOKENS)
    num_tokens -= num_tokens % PREFIX_BLOCK_TOKENS
    if not num_tokens:
        return None
    salt = blake2b(cache_salt.encode(), digest_size=16).digest()
    return salt + prompt[: num_tokens * _TOKEN_BYTES]


def choose(candidates: Sequence[Candidate], prefix: bytes | None, request_id: str) -> int:
    """Returns the index of the scheduler for a request.

    Args:
        candidates: The schedulers, at least one.
        prefix: The `prefix_key`; None sends the request to the least loaded one.
        request_id: Decides between those that are equally good.
    """
    indices = [index for index, one in enumerate(candidates) if one.is_sound]
    indices = indices or list(range(len(candidates)))
    if len(indices) == 1:
        return indices[0]
    largest = max(candidates[index].capacity for index in indices)
    loads = {index: _load(candidates[index], largest) for index in indices}
    key = blake2b(prefix or request_id.encode(), digest_size=16).digest()
    scores = {index: _score(candidates[index].name, key) for index in indices}
    least = min(loads.values())
    bound = least * LOAD_FACTOR + LOAD_SLACK if prefix else least
    return max((index for index in indices if loads[index] <= bound), key=scores.__getitem__)


def _load(candidate: Candidate, largest: int) -> float:
    """Returns the requests there, as many as they would be at a scheduler of the largest size."""
    if not candidate.capacity:
        return float(candidate.load)
    return candidate.load * largest / candidate.capacity


def _score(name: str, key: bytes) -> bytes:
    return blake2b(name.encode(), key=key, digest_size=8).digest()
